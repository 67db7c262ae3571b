//! An unmodified redis, with its default settings, serves helped clients.

mod support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;

use spillway_batch::{CloseReason, Id};
use spillway_ports::free_address;
use support::driver::WAIT_MAX;
use support::redis::{Redis, ask_text, bulk, command, command_of, connect_local, expect};

#[test]
fn pipelines_of_many_clients_are_served() {
    let redis = Redis::start(&[]);
    let mut links = [redis.link(), redis.link()];
    let mut plain = TcpStream::connect(redis.server.plain).unwrap();
    let ids: Vec<Vec<Id>> =
        links.iter_mut().map(|link| (0..200).map(|_| connect_local(link)).collect()).collect();
    for round in 0..10 {
        for (number, (link, ids)) in links.iter_mut().zip(&ids).enumerate() {
            for id in ids {
                let key = format!("key-{number}-{id}");
                let value = format!("{round}").repeat(id.0 as usize % 300 + 1);
                // A pipeline of three commands.
                link.send(*id, &command(&[b"SET", key.as_bytes(), value.as_bytes()]));
                link.send(*id, &command(&[b"GET", key.as_bytes()]));
                link.send(*id, &command_of("PING"));
            }
            let expected = |id: &Id| {
                let value = format!("{round}").repeat(id.0 as usize % 300 + 1);
                [b"+OK\r\n", &bulk(value.as_bytes())[..], b"+PONG\r\n"].concat()
            };
            link.run(|link| ids.iter().all(|id| link.connections[id].received.len() >= expected(id).len()));
            for id in ids {
                assert_eq!(link.take(*id), expected(id));
            }
        }
        plain.write_all(&command_of("PING")).unwrap();
        let mut pong = [0; 7];
        plain.read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"+PONG\r\n");
    }
}

#[test]
fn helped_clients_are_served_during_a_forked_snapshot() {
    let redis = Redis::start(&["--rdb-key-save-delay", "200"]);
    let mut link = redis.link();
    let ids: Vec<Id> = (0..50).map(|_| connect_local(&mut link)).collect();
    for number in 0..2000 {
        link.send(ids[number % 50], &command_of(&format!("SET k{number} v{number}")));
    }
    link.run(|link| ids.iter().all(|id| link.connections[id].received.len() == 40 * 5));
    ids.iter().for_each(|id| drop(link.take(*id)));
    for _ in 0..3 {
        expect(&mut link, ids[0], &command_of("BGSAVE"), b"+Background saving started\r\n");
        let mut rounds = 0;
        let deadline = Instant::now() + WAIT_MAX;
        loop {
            for id in &ids {
                link.send(*id, &command_of("INCR counter"));
            }
            link.run(|link| ids.iter().all(|id| link.connections[id].received.ends_with(b"\r\n")));
            ids.iter().for_each(|id| drop(link.take(*id)));
            rounds += 1;
            let info = ask_text(&mut link, ids[1], "INFO persistence");
            assert!(!info.contains("rdb_last_bgsave_status:err"), "{info}");
            if info.contains("rdb_bgsave_in_progress:0") {
                break;
            }
            assert!(Instant::now() < deadline);
        }
        assert!(rounds > 1, "clients should be served during the snapshot");
    }
    assert!(redis.directory.join("dump.rdb").exists());
}

#[test]
fn blocking_commands_and_publications_are_served() {
    let redis = Redis::start(&[]);
    let (mut link, mut other) = (redis.link(), redis.link());
    let (waiting, pushing) = (connect_local(&mut link), connect_local(&mut other));
    for round in 0..20 {
        link.send(waiting, &command_of("BLPOP queue 0"));
        link.flush();
        let value = format!("v{round}");
        expect(&mut other, pushing, &command_of(&format!("RPUSH queue {value}")), b":1\r\n");
        let popped = [b"*2\r\n", &bulk(b"queue")[..], &bulk(value.as_bytes())].concat();
        link.run(|link| link.connections[&waiting].received.len() >= popped.len());
        assert_eq!(link.take(waiting), popped);
    }
    // A blocking command that times out.
    expect(&mut link, waiting, &command_of("BLPOP queue 0.05"), b"*-1\r\n");

    let subscribers: Vec<Id> = (0..50).map(|_| connect_local(&mut link)).collect();
    let subscribed = [b"*3\r\n", &bulk(b"subscribe")[..], &bulk(b"news"), b":1\r\n"].concat();
    for id in &subscribers {
        expect(&mut link, *id, &command_of("SUBSCRIBE news"), &subscribed);
    }
    for round in 0..20 {
        let text = format!("message {round}");
        let publish = command(&[b"PUBLISH", b"news", text.as_bytes()]);
        expect(&mut other, pushing, &publish, b":50\r\n");
        let message = [b"*3\r\n", &bulk(b"message")[..], &bulk(b"news"), &bulk(text.as_bytes())].concat();
        link.run(|link| subscribers.iter().all(|id| link.connections[id].received.len() >= message.len()));
        for id in &subscribers {
            assert_eq!(link.take(*id), message);
        }
    }
}

#[test]
fn client_list_and_protected_mode_use_the_clients_addresses() {
    let redis = Redis::start(&[]);
    let mut link = redis.link();
    for client in ["127.0.0.1:4711", "[::1]:4712"] {
        let id = link.connect_from(client.parse().unwrap());
        let list = ask_text(&mut link, id, "CLIENT LIST");
        // The server's address on the helper's link, with the ordinary port.
        let own = format!("127.0.0.1:{} ", redis.server.plain.port())
            .replace("127.0.0.1", if client.starts_with('[') { "[::ffff:127.0.0.1]" } else { "127.0.0.1" });
        let line = format!(" addr={client} laddr={own}");
        assert!(list.contains(&line), "the line {line} should be in {list}");
    }
    // Without a password redis serves local clients only, by the clients' own addresses.
    let foreign = link.connect_from("10.1.2.3:5000".parse().unwrap());
    link.run(|link| link.connections[&foreign].closed.is_some());
    assert!(link.take(foreign).starts_with(b"-DENIED Redis is running in protected mode"));
}

#[test]
fn only_the_subscriber_that_does_not_read_is_disconnected() {
    let redis = Redis::start(&["--client-output-buffer-limit", "pubsub 1mb 512kb 2"]);
    let mut link = redis.link();
    let (slow, quick, publisher) =
        (connect_local(&mut link), connect_local(&mut link), connect_local(&mut link));
    for id in [slow, quick] {
        link.send(id, &command_of("SUBSCRIBE news"));
        link.run(|link| link.connections[&id].received.ends_with(b":1\r\n"));
        link.take(id);
    }
    link.of(slow).is_unread = true;
    let text = vec![b'x'; 64 * 1024];
    let mut published = 0;
    while link.connections[&slow].closed.is_none() {
        let publish = command(&[b"PUBLISH", b"news", &text]);
        link.send(publisher, &publish);
        link.run(|link| link.connections[&publisher].received.ends_with(b"\r\n"));
        link.take(publisher);
        published += 1;
        assert!(published < 200, "the limit of 1 MB should be reached before {published} messages of 64 KB");
    }
    let message = [b"*3\r\n", &bulk(b"message")[..], &bulk(b"news"), &bulk(&text)].concat();
    link.run(|link| link.connections[&quick].received.len() >= published * message.len());
    assert!(link.take(quick) == message.repeat(published));
}

#[test]
fn thirty_megabytes_are_transferred_in_both_directions() {
    let redis = Redis::start(&[]);
    let mut link = redis.link();
    let (id, other) = (connect_local(&mut link), connect_local(&mut link));
    let value: Vec<u8> = (0..30_000_000u32).map(|at| (at % 253) as u8).collect();
    link.send(id, &command(&[b"SET", b"large", &value]));
    link.run(|link| link.connections[&id].received.ends_with(b"\r\n"));
    assert_eq!(link.take(id), b"+OK\r\n");
    link.send(id, &command_of("GET large"));
    expect(&mut link, other, &command_of("PING"), b"+PONG\r\n");
    let reply = bulk(&value);
    link.run(|link| link.connections[&id].received.len() >= reply.len());
    assert!(link.take(id) == reply);
}

#[test]
fn idle_clients_are_closed_and_clients_over_the_limit_get_an_error() {
    let redis = Redis::start(&["--timeout", "1", "--maxclients", "20"]);
    let mut link = redis.link();
    let ids: Vec<Id> = (0..30).map(|_| connect_local(&mut link)).collect();
    for id in &ids {
        link.send(*id, &command_of("PING"));
    }
    link.run(|link| ids.iter().all(|id| !link.connections[id].received.is_empty()));
    let (served, rejected): (Vec<Id>, Vec<Id>) =
        ids.iter().partition(|id| link.connections[id].received == b"+PONG\r\n");
    assert!((1..=20).contains(&served.len()), "at most 20 clients should be served: {}", served.len());
    for id in rejected {
        assert_eq!(link.take(id), b"-ERR max number of clients reached\r\n");
    }
    link.run(|link| ids.iter().all(|id| link.connections[id].closed.is_some()));
    assert!(ids.iter().all(|id| link.connections[id].closed == Some(CloseReason::Normal)));
}

/// Redis serves its TLS port without Spillway, beside the helped port.
#[test]
fn tls_port_is_served_beside_the_helped_port() {
    let folder = std::env::temp_dir().join(format!("spillway-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (key, certificate) = (folder.join("key.pem"), folder.join("cert.pem"));
    let status = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"])
        .arg("-keyout")
        .arg(&key)
        .arg("-out")
        .arg(&certificate)
        .stderr(Stdio::null())
        .status()
        .expect("run openssl");
    assert!(status.success());
    let tls = free_address();
    let port = tls.port().to_string();
    let redis = Redis::start(&[
        "--tls-port",
        &port,
        "--tls-cert-file",
        certificate.to_str().unwrap(),
        "--tls-key-file",
        key.to_str().unwrap(),
        "--tls-auth-clients",
        "no",
    ]);
    let mut link = redis.link();
    let id = connect_local(&mut link);
    expect(&mut link, id, &command_of("SET k secret"), b"+OK\r\n");
    for _ in 0..3 {
        let output = Command::new("redis-cli")
            .args(["-p", &port, "--tls", "--insecure", "GET", "k"])
            .stdin(Stdio::null())
            .output()
            .expect("run redis-cli");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "secret\n", "{output:?}");
        expect(&mut link, id, &command_of("PING"), b"+PONG\r\n");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
