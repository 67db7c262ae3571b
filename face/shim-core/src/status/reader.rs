//! Reads the status pages of this machine's servers, for Spillway's commands.
//!
//! A running server holds a lock on its page. The kernel reports the lock's holder, also across PID namespaces, so the
//! process id on the page, which could be forged, is not trusted: a page is valid only if its file belongs to the user
//! of the holder. Only a process that can lock a page removes it. Pages are not mapped, because another
//! process could truncate them.
//!
//! - `search`: the pages of this machine
//! - `server_page`: the page of one server; `requests`: requests to several
//! - `holder`: the process that has locked a page
//! - `page_file`: reads of words and slots; `decoded`: what they mean

mod decoded;
mod holder;
mod page_file;
mod requests;
mod search;
mod server_page;
#[cfg(test)]
mod test_pages;

pub use decoded::{ConnectionStatus, LinkStatus, ServerStatus};
pub(super) use holder::clear_path;
pub use requests::request_all;
pub(super) use search::find_in;
pub use search::{UnreadablePage, find_pages, page_directories};
pub use server_page::{ServerPage, escape_name};
