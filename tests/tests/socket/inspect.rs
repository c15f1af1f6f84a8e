//! Objects of a live server, asked for at its control socket.

use hca_driver::{Config, Hca, SendRequest};
use hca_tests::pair::{Options, Pair};
use hca_tests::served::Served;
use hca_tests::worlds::TWO_HOSTS;
use serde_json::{Value, json};

fn fields<'a>(object: &'a Value, layout: &str) -> Vec<&'a Value> {
    let structures = object["parts"].as_array().into_iter().flatten();
    let structures = structures.flat_map(|part| part["structures"].as_array().into_iter().flatten());
    let of = structures.filter(|structure| structure["layout"] == layout);
    of.flat_map(|structure| structure["fields"].as_array().into_iter().flatten()).collect()
}

#[test]
fn a_queue_pair_of_a_live_server() {
    let served = Served::start(TWO_HOSTS);
    let open = |host| Hca::open(served.bus(host), Config::default()).expect("the adapter comes up");
    let mut pair = Pair::connect(vec![open("a"), open("b")], &Options::default()).expect("connect");
    let mr = pair.ends[1].mr;
    pair.send(0, &SendRequest::write(1, &[pair.ends[0].sge(0, 8)], mr.address, mr.key));
    pair.sent_ok(0, 1);
    let qpn = pair.ends[0].qp.number().0;
    let ask = |at: Option<&str>, number: u32| {
        served.request(&json!({"cmd": "inspect", "what": "qp", "number": number, "at": at}))
    };
    let answer = ask(Some("a"), qpn).expect("it is there");
    let objects = answer["objects"].as_array().expect("a list");
    assert_eq!((objects.len(), &objects[0]["hca"]), (1, &json!("a/hca0")));
    let context = fields(&objects[0], "Qpc");
    assert!(context.iter().any(|field| field["name"] == "STATE" && field["value"] == 3), "{answer}");
    assert!(context.iter().any(|field| field["in"] == "primary_path"), "{answer}");
    let remote = fields(&objects[0], "RemoteAddr");
    assert!(remote.iter().any(|field| field["name"] == "RKEY" && field["value"] == mr.key.0), "{answer}");
    // The first number is used on both adapters.
    assert_eq!(ask(None, qpn).expect("there are two")["objects"].as_array().map(Vec::len), Some(2));
    let wrong = ask(None, 0x1000).unwrap_err().to_string();
    assert!(wrong.contains("a/hca0: there is no QP 0x1000, but") && wrong.contains("b/hca0:"), "{wrong}");
    let nowhere = ask(Some("c"), qpn).unwrap_err().to_string();
    assert!(nowhere.contains("there is no such adapter, but a/hca0, b/hca0"), "{nowhere}");
    pair.close().expect("teardown");
}
