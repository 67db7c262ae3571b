//! What the preload shim does inside somebody's server.
