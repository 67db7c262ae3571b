//! The helper's status page in a headless browser, under load.

mod support;

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use spillway_lab::LabError;
use spillway_lab::browser::{View, inspect_page};
use spillway_ports::free_port;
use support::{Client, Options, PATIENCE, Scene, SetOnDrop, loopback};

fn curl(address: &str, path: &str) -> String {
    let output =
        Command::new("curl").args(["-s", "--max-time", "10", &format!("http://{address}{path}")]).output();
    String::from_utf8_lossy(&output.expect("run curl").stdout).into_owned()
}

#[test]
fn status_page_shows_charts_and_has_no_problems_in_any_view() {
    let address = loopback(free_port()).to_string();
    let argument: &'static str = Box::leak(address.clone().into_boxed_str());
    let scene = Scene::with(Options { helper_arguments: vec!["--metrics", argument], ..Options::default() });
    let done = AtomicBool::new(false);
    let page = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::new(scene.plain_port);
            client.set("key", b"value");
            while !done.load(Ordering::Relaxed) {
                client.get("key");
            }
        });
        let _ending = SetOnDrop(&done);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = curl(&address, "/");
            // A single value is drawn as two points, so three points are three intervals with requests.
            let first = page.split("<polyline points=\"").nth(1).and_then(|rest| rest.split('"').next());
            if first.is_some_and(|points| points.split_whitespace().count() >= 3) {
                break page;
            }
            assert!(Instant::now() < deadline, "{page}");
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    for chart in ["requests/s", "messages per batch", "batch delay p99 µs", "CPU %"] {
        assert!(page.contains(chart), "{chart}: {page}");
    }
    let links: Vec<&str> =
        page.split("href=\"/docs/").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(links.len() >= 3, "{page}");
    for link in links {
        let text = curl(&address, &format!("/docs/{link}"));
        assert!(text.starts_with("# "), "{link}: {text}");
    }
    for view in View::ALL {
        match inspect_page(&page, view) {
            Ok(layout) => assert_eq!(layout.problems(view), Vec::<String>::new(), "{view:?}"),
            Err(error @ LabError::MissingTool { .. }) => return eprintln!("skipped: {error}"),
            Err(error) => panic!("{error}"),
        }
    }
}
