//! As much of HTTP/1.1 as a scraper needs: one request, one answer, and the end of the connection (RFC 9112).

/// The format of the page: Prometheus' text format, "Exposition formats".
const FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a client has said so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Not all of its request.
    Half,
    /// It is gone.
    Ended,
    /// It wants the page, or only what comes before it.
    Asked {
        /// Only what comes before it.
        head: bool,
    },
    /// It wants something else; the answer.
    Refused(Vec<u8>),
}

/// Looks at a request of at most `most` bytes. `tcp`: whoever can make a program of this machine ask can ask, too, so the
/// name by which the server was called has to be this machine's.
pub(super) fn judge(request: &[u8], most: usize, tcp: bool) -> State {
    let Some(end) = request.windows(4).position(|four| four == b"\r\n\r\n") else {
        return if request.len() < most {
            State::Half
        } else {
            refused("431 Request Header Fields Too Large")
        };
    };
    let Some(text) = request.get(..end).and_then(|head| std::str::from_utf8(head).ok()) else {
        return refused("400 Bad Request");
    };
    let mut lines = text.split("\r\n");
    let words: Vec<&str> = lines.next().unwrap_or_default().split(' ').collect();
    let [method, target, "HTTP/1.0" | "HTTP/1.1"] = words[..] else { return refused("400 Bad Request") };
    let host =
        lines.filter_map(|line| line.split_once(':')).find(|(name, _)| name.eq_ignore_ascii_case("host"));
    if tcp && !host.is_none_or(|(_, host)| is_here(host.trim())) {
        return refused("403 Forbidden");
    }
    match (method, target.split('?').next()) {
        ("GET", Some("/metrics")) => State::Asked { head: false },
        ("HEAD", Some("/metrics")) => State::Asked { head: true },
        ("GET" | "HEAD", _) => refused("404 Not Found"),
        _ => refused("405 Method Not Allowed"),
    }
}

fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next(),
        None => host.split(':').next(),
    };
    let name = name.unwrap_or_default();
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

fn refused(why: &str) -> State {
    State::Refused(answer(why, "text/plain; charset=utf-8", &format!("{why}: metrics are at /metrics\n")))
}

/// An answer with the page.
pub(super) fn found(page: &str) -> Vec<u8> {
    answer("200 OK", FORMAT, page)
}

fn answer(status: &str, format: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {format}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    (head + body).into_bytes()
}

/// An answer without its body.
pub(super) fn head_of(answer: &[u8]) -> &[u8] {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").map_or(answer.len(), |at| at + 4);
    answer.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: usize = 1024;

    fn of(request: &str) -> State {
        judge(request.as_bytes(), MOST, true)
    }

    fn status(request: &str) -> String {
        let State::Refused(answer) = of(request) else { panic!("{request}") };
        String::from_utf8(answer).unwrap().split(' ').nth(1).unwrap().to_owned()
    }

    #[test]
    fn scrapers_are_understood() {
        let get = "GET /metrics HTTP/1.1\r\nHost: localhost:9100\r\nAccept: */*\r\n\r\n";
        assert_eq!(of(get), State::Asked { head: false });
        assert_eq!(of("GET /metrics?name[]=x HTTP/1.0\r\n\r\n"), State::Asked { head: false });
        assert_eq!(of("HEAD /metrics HTTP/1.1\r\nHOST: [::1]:9100\r\n\r\n"), State::Asked { head: true });
        for end in 0..get.len() {
            assert_eq!(of(&get[..end]), State::Half);
        }
    }

    #[test]
    fn others_are_refused() {
        assert_eq!(status("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"), "404");
        assert_eq!(status("POST /metrics HTTP/1.1\r\n\r\n"), "405");
        assert_eq!(status("GET /metrics\r\n\r\n"), "400");
        assert_eq!(status("GET /metrics HTTP/2.0\r\n\r\n"), "400");
        assert_eq!(status("\r\n\r\n"), "400");
        assert_eq!(status(&format!("GET /{}", "x".repeat(MOST))), "431");
        assert!(matches!(judge(b"GET \xff\r\n\r\n", MOST, true), State::Refused(_)));
    }

    /// A page in a browser may call itself whatever it likes, and have a name that leads here.
    #[test]
    fn names_that_are_not_this_machines_are_refused() {
        let named = |host: &str| format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n");
        for host in
            ["evil.example", "evil.example:9100", "localhost.evil.example", "10.0.0.1:9100", "[2001:db8::1]"]
        {
            assert_eq!(status(&named(host)), "403", "{host}");
        }
        assert_eq!(judge(named("evil.example").as_bytes(), MOST, false), State::Asked { head: false });
    }

    #[test]
    fn answers_end_with_their_body() {
        let answer = found("a 1\n");
        let text = String::from_utf8(answer.clone()).unwrap();
        assert!(text.contains("\r\nContent-Length: 4\r\n") && text.ends_with("\r\n\r\na 1\n"), "{text}");
        assert!(text.contains("version=0.0.4"));
        assert!(head_of(&answer).ends_with(b"\r\n\r\n"));
    }
}
