use std::net::TcpListener;
use std::path::Path;
use std::thread::JoinHandle;

use hca_model::Ps;

use super::*;
use crate::simbricks::{Channel, Heard, Open, open};

const PATIENCE: Duration = Duration::from_secs(60);

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("softhca-proxy-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Both ends of a connection.
fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [one, listener.accept().unwrap().0]
}

fn proxy(role: Role, paths: &[PathBuf], stream: TcpStream) -> JoinHandle<anyhow::Result<()>> {
    let ends: Vec<_> = paths.iter().map(|path| End { role, path: path.clone() }).collect();
    std::thread::spawn(move || run(&ends, stream, PATIENCE, || Ok(())))
}

fn channel(role: Role, path: &Path) -> JoinHandle<Channel> {
    let link = Open::network(role, path.into(), 1000, 1000);
    std::thread::spawn(move || open(&[link], PATIENCE).unwrap().pop().unwrap())
}

fn take(channel: &mut Channel) -> (Ps, Vec<u8>) {
    let mut bytes = Vec::new();
    let until = Instant::now() + PATIENCE;
    loop {
        if let Heard::Packet(at) = channel.take(&mut bytes).unwrap() {
            return (at, bytes);
        }
        assert!(Instant::now() < until, "nothing comes");
        Channel::rest([&*channel].into_iter(), NAP, || Ok(true)).unwrap();
    }
}

/// Two links, more messages than rings have entries, both ways; then an end goes.
#[test]
fn links_pass_and_end() {
    let dir = folder("pass");
    let paths = |side: &str| [0, 1].map(|link| dir.join(format!("{side}{link}.sock")));
    let [here, there] = connection();
    let proxies = [proxy(Role::Connect, &paths("a"), here), proxy(Role::Listen, &paths("b"), there)];
    let near = paths("a").map(|path| channel(Role::Listen, &path));
    let far = paths("b").map(|path| channel(Role::Connect, &path));
    let mut near = near.map(|channel| channel.join().unwrap());
    let mut far = far.map(|channel| channel.join().unwrap());
    assert!(near.iter().chain(&far).all(Channel::is_ours), "they know that they are of one kind");
    for (link, (near, far)) in near.iter_mut().zip(&mut far).enumerate() {
        for back in [false, true] {
            let (from, to) = if back { (&mut *far, &mut *near) } else { (&mut *near, &mut *far) };
            for time in 0..2000u64 {
                let bytes = vec![link as u8; time as usize % 900];
                from.send(Ps(time), &[&bytes]).unwrap();
                from.flush().unwrap();
                from.rouse().unwrap();
            }
            for time in 0..2000u64 {
                from.flush().unwrap();
                assert_eq!(take(to), (Ps(time), vec![link as u8; time as usize % 900]));
            }
            from.promise(Ps(5000), Ps(9000)).unwrap();
            from.rouse().unwrap();
            let until = Instant::now() + PATIENCE;
            while to.heard() < Ps(5000) {
                assert_eq!(to.take(&mut Vec::new()).unwrap(), Heard::Nothing);
                assert!(Instant::now() < until);
            }
            assert_eq!(to.outlook(), Ps(9000));
            // What is said of all parts comes with what was said before it.
            for wave in 1..200u64 {
                let answer = [(Word::Time, wave * 3), (Word::Sum, wave * 5), (Word::Answered, wave)];
                from.say(answer).unwrap();
                while to.said(Word::Answered).unwrap() < wave {
                    assert!(Instant::now() < until);
                }
                assert_eq!([Word::Time, Word::Sum].map(|word| to.said(word).unwrap()), [wave * 3, wave * 5]);
            }
        }
    }
    drop(near);
    let until = Instant::now() + PATIENCE;
    while !far.iter().all(Channel::has_hung_up) {
        assert!(Instant::now() < until, "it is not said that the peer is gone");
    }
    proxies.into_iter().for_each(|proxy| proxy.join().unwrap().unwrap());
}

#[test]
fn what_is_wrong_is_said() {
    let dir = folder("wrong");
    let path = [dir.join("x.sock")];
    // Both connect.
    let [here, there] = connection();
    for proxy in [proxy(Role::Connect, &path, here), proxy(Role::Connect, &path, there)] {
        let why = format!("{:#}", proxy.join().unwrap().unwrap_err());
        assert!(why.contains("other links") || why.contains("has ended"), "{why}");
    }
    // Somebody else.
    for words in [&b"GET / HTTP/1.1\r\n\r\n and more than a greeting"[..], b"s"] {
        let [here, mut there] = connection();
        let proxy = proxy(Role::Listen, &path, here);
        there.write_all(words).unwrap();
        drop(there);
        let why = format!("{:#}", proxy.join().unwrap().unwrap_err());
        assert!(
            why.contains("is no softhca sim-proxy")
                || why.contains("has ended")
                || why.contains("connection"),
            "{why}"
        );
    }
    // One that says nonsense after its greeting.
    let [here, mut there] = connection();
    let proxy = proxy(Role::Listen, &path, here);
    there.write_all(&[wire::GREETING, &[1, 0, 0], &[9; 40]].concat()).unwrap();
    let why = format!("{:#}", proxy.join().unwrap().unwrap_err());
    assert!(why.contains("no frame"), "{why}");
    // Queues that can't be.
    assert!(queues([[64, 4], [128, 4]]).is_err() && queues([[128, u32::MAX], [128, 4]]).is_err());
    let [from, to] = queues([[128, 3], [1600, 512]]).unwrap();
    assert!(from.end() <= to.offset);
}
