use super::*;

fn keys(text: &str) -> Keys {
    toml::from_str(text).unwrap()
}

fn refused(text: &str) -> (String, String) {
    let Wrong { key, reason } = parse(&keys(text), 1).unwrap_err();
    (key, reason)
}

#[test]
fn a_command() {
    let text = "at = 'a/hca0'\non = 'command'\nopcode = 'CREATE_CQ'\nnth = 3\naction = 'fail'\nstatus = 0xf\nsyndrome = 0x1234";
    let (at, fault) = parse(&keys(text), 9).unwrap();
    assert_eq!((at.as_str(), fault.name.as_str()), ("a/hca0", "command fail"));
    let action = CommandAction::Fail { status: 0xf, syndrome: 0x1234 };
    assert_eq!(fault.what, What::Command { opcode: Some(0x400), object: None, action });
    assert_eq!(fault.trigger, Trigger { nth: 3, seed: 9, ..Trigger::default() });
}

#[test]
fn a_packet() {
    let text = "at = 'a'\non = 'packet'\naction = 'late'\ndelay_us = 2\nopcode = 'rc-acknowledge'\nqp = 0x41\npsn = 7";
    let (_, fault) = parse(&keys(text), 1).unwrap();
    let header = Header { port: None, opcode: Some(0x11), qpn: Some(Qpn(0x41)), psn: Some(Psn::new(7)) };
    assert_eq!(fault.what, What::Packet { header, action: PacketAction::Late(Ps::from_us(2)) });
}

#[test]
fn an_event_of_a_port() {
    let text = "at = 'a'\non = 'event'\naction = 'lose'\ntype = 'port-change'\nport = 2";
    let (kind, action) = (Some(9), EntryAction::Lose);
    let expected = What::Event { eqn: None, kind, number: None, port: Some(2), action };
    assert_eq!(parse(&keys(text), 1).unwrap().1.what, expected);
}

#[test]
fn pages_in_both_directions() {
    let what = |pages: &str| {
        let text = format!("at = 'a'\non = 'time'\naction = 'pages'\npages = {pages}");
        parse(&keys(&text), 1).unwrap().1.what
    };
    for pages in [16, -16] {
        let expected = What::Time { every: None, action: TimeAction::Pages(pages) };
        assert_eq!(what(&pages.to_string()), expected);
    }
}

/// Each file of the gallery is a topology with one fault.
#[test]
fn the_gallery() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../qemu-configs/faults");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let count = files.map(|file| {
        let text = std::fs::read_to_string(&file).unwrap();
        let topology = crate::topology::Topology::parse("gallery", &text);
        let topology = topology.unwrap_or_else(|why| panic!("{}: {why:#}", file.display()));
        assert_eq!(topology.faults.len(), 1, "{}", file.display());
    });
    assert!(count.count() >= 38);
}

#[test]
fn accesses_to_memory() {
    let what = |more: &str| parse(&keys(&format!("at = 'a'\non = 'dma'\n{more}")), 1).unwrap().1.what;
    assert_eq!(what("action = 'abort'"), What::Dma { range: None, action: DmaAction::Abort });
    let range = Some((0x10_0000, 0x10_0040));
    let with_range = what("action = 'poison'\naddress = 0x100000\nlength = 64");
    assert_eq!(with_range, What::Dma { range, action: DmaAction::Poison });
    let page = what("action = 'lose'\naddress = '0xfffffffffffff000'");
    assert_eq!(page, What::Dma { range: Some((0xffff_ffff_ffff_f000, u64::MAX)), action: DmaAction::Lose });
}

#[test]
fn the_slot_and_the_port() {
    let action = |more: &str| {
        let what = parse(&keys(&format!("at = 'a'\non = 'time'\n{more}")), 1).unwrap().1.what;
        let What::Time { action, .. } = what else { panic!("{what:?}") };
        action
    };
    let link = PcieLink { lanes: 4, speed: 1 };
    assert_eq!(
        action("action = 'retrain'\nlanes = 4\nspeed = 'gen1'\nfor_ms = 2"),
        TimeAction::Retrain { link, lasting: Some(Ps::from_ms(2)) }
    );
    let slot = |event, back| TimeAction::Slot { event, back };
    assert_eq!(action("action = 'remove'"), slot(SlotEvent::Removed, None));
    let later = Some(Ps::from_ms(3));
    assert_eq!(action("action = 'eject'\nfor_ms = 3"), slot(SlotEvent::Ejected, later));
    assert_eq!(action("action = 'insert'"), slot(SlotEvent::Inserted, None));
    assert!(parse(&keys("at = 'a'\non = 'time'\naction = 'insert'\nfor_ms = 3"), 1).is_err());
    assert_eq!(
        action("action = 'degrade'\nlanes = 1"),
        TimeAction::Degrade { port: 1, lanes: 1, lasting: None }
    );
    let error = pcie_error_named("malformed-tlp").unwrap();
    assert_eq!(
        action("action = 'pcie-error'\nerror = 'malformed-tlp'\nheader = '4a000001 0203'"),
        TimeAction::PcieError { error, header: [0x4a00_0001, 0x0203_0000, 0, 0] }
    );
    let (error, lasting) = (ModuleError::BusStuck, Lasting::For(Ps::from_ms(4)));
    assert_eq!(
        action("action = 'module'\nerror = 'bus-stuck'\nfor_ms = 4"),
        TimeAction::Module { port: 1, error, lasting }
    );
    let heat = |lasting| TimeAction::Heat { degrees: 110, lasting };
    assert_eq!(action("action = 'heat'\ndegrees = 110"), heat(None));
    assert_eq!(action("action = 'heat'\ndegrees = 110\nfor_ms = 3"), heat(later));
    let change = |more: &str| match action(more) {
        TimeAction::Port { port: 1, change } => change,
        other => panic!("{other:?}"),
    };
    assert_eq!(change("action = 'lid'\nlid = 0x77"), PortChange::Lid(0x77));
    assert_eq!(change("action = 'pkey'\npkey = 0x8001"), PortChange::Pkey { index: 0, pkey: 0x8001 });
    let prefix = change("action = 'gid-prefix'\nprefix = '0xfec0000000000000'");
    assert_eq!(prefix, PortChange::GidPrefix(0xfec0 << 48));
}

#[test]
fn to_which() {
    let trigger = |more: &str| {
        let text = format!("at = 'a'\non = 'interrupt'\naction = 'lose'\n{more}");
        parse(&keys(&text), 1).unwrap().1.trigger
    };
    assert_eq!(trigger("count = 0").count, None);
    assert_eq!(trigger("probability = 0.5").count, None);
    assert_eq!(trigger("probability = 0.5\ncount = 3").count, Some(3));
    let times = trigger("from_ms = 1.5\nuntil_ms = 2");
    assert_eq!((times.from, times.until), (Ps::from_us(1500), Ps::from_ms(2)));
}

#[test]
fn what_is_wrong() {
    let cases = [
        ("on = 'command'\naction = 'hang'", "at", "is needed"),
        ("at = 'a'\non = 'weather'\naction = 'hang'", "on", "\"weather\" is none of"),
        ("at = 'a'\non = 'command'\naction = 'melt'", "action", "only fail, hang, late"),
        ("at = 'a'\non = 'command'\naction = 'late'", "delay_us", "is needed"),
        ("at = 'a'\non = 'command'\naction = 'hang'\nbits = 3", "bits", "is no key of on = \"command\""),
        ("at = 'a'\non = 'command'\naction = 'hang'\nopcode = 'MAKE_TEA'", "opcode", "CREATE_CQ"),
        ("at = 'a'\non = 'command'\naction = 'hang'\nnth = 0", "nth", "from 1"),
        ("at = 'a'\non = 'command'\naction = 'hang'\nnth = -1", "nth", "a number from 0"),
        ("at = 'a'\non = 'command'\naction = 'hang'\nprobability = 1.5", "probability", "from 0 to 1"),
        ("at = 'a'\non = 'command'\naction = 'undelivered'\ndelivery = 0", "delivery", "0x1 to 0x9"),
        ("at = 'a'\non = 'completion'\naction = 'error'", "syndrome", "is needed"),
        ("at = 'a'\non = 'completion'\naction = 'lose'\nside = 'left'", "side", "\"left\" is neither"),
        ("at = 'a'\non = 'packet'\naction = 'lose'\nopcode = 'send'", "opcode", "rc-send-only"),
        ("at = 'a'\non = 'packet'\naction = 'overflow'", "action", "only lose, late, twice, corrupt"),
        ("at = 'a'\non = 'event'\naction = 'error'", "action", "no action \"error\""),
        ("at = 'a'\non = 'time'\naction = 'ail'", "syndrome", "or frozen"),
        ("at = 'a'\non = 'time'\naction = 'away'\nfor_ms = 1\nuntil = 'never'", "until", "already"),
        ("at = 'a'\non = 'time'\naction = 'event'\ntype = 0x16\ndata = '0'", "data", "28 bytes"),
        ("at = 'a'\non = 'time'\naction = 'event'\ntype = 0x16\ndata = 'zz'", "data", "28 bytes"),
        ("at = 'a'\non = 'time'\naction = 'pages'\npages = 0", "pages", "how many"),
        ("at = 'a'\non = 'time'\naction = 'pcie-error'\nerror = 'rain'", "error", "completion-timeout"),
        ("at = 'a'\non = 'time'\naction = 'retrain'\nlanes = 4", "lanes", "and speed"),
        ("at = 'a'\non = 'time'\naction = 'degrade'\nlanes = 3", "lanes", "8 or 12"),
        ("at = 'a'\non = 'time'\naction = 'module'\nerror = 'melts'", "error", "bad-cable"),
        ("at = 'a'\non = 'time'\naction = 'module'", "error", "needed"),
        ("at = 'a'\non = 'time'\naction = 'heat'", "degrees", "needed"),
        ("at = 'a'\non = 'time'\naction = 'heat'\ndegrees = 256", "degrees", "0xff"),
        ("at = 'a'\non = 'time'\naction = 'lid'\nlid = 0xc000", "lid", "0xbfff"),
        ("at = 'a'\non = 'dma'\naction = 'abort'\nlength = 4", "length", "address"),
        ("at = 'a'\non = 'dma'\naction = 'melt'", "action", "only unsupported, abort"),
        ("at = 'a'\non = 'interrupt'\naction = 'lose'\nfrom_ms = 2\nuntil_ms = 1", "until_ms", "after"),
    ];
    for (text, key, reason) in cases {
        let (found, why) = refused(text);
        assert!(found == key && why.contains(reason), "{text}: {found}: {why}");
    }
}

#[test]
fn bytes_of_an_event() {
    let text = "at = 'a'\non = 'time'\naction = 'event'\ntype = 'port-module'\ndata = '0001 02ff'";
    let (_, fault) = parse(&keys(text), 1).unwrap();
    let What::Time { action: TimeAction::Event { kind: 0x16, data, .. }, .. } = fault.what else {
        panic!("{fault:?}");
    };
    assert_eq!(data[..5], [0, 1, 2, 0xff, 0]);
}
