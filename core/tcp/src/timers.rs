//! A hierarchical timing wheel (Varghese and Lauck 1987): one deadline a connection.
