//! A guest's objects: many of them, and how they go.

use std::time::Duration;

use hca_driver::qp::QpConfig;
use hca_driver::vfio_user::{VfioUserBus, WindowMemory};
use hca_driver::wqe::{Datagram, SendOp};
use hca_driver::{InitAttr, Qp, RtsAttr, SendRequest};
use hca_spec::cmd::McgIn;
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::{Gid, Lid, Qpn};

use super::Row;
use super::peers::several;
use super::stage::{Attacker, BYSTANDER, Driver, Failure, MEMORY, driver};
use crate::million::{Ground, Kind, create, destroy};
use crate::pair::{Options, Pair};

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: 16384 queue pairs, then FLR", |a| {
        let (mut hca, made) = many(a, Kind::Qp, 16384)?;
        hca.bus_mut().reset()?;
        Ok(made)
    }),
    Row::new("guest: 16384 queue pairs, then gone", |a| many(a, Kind::Qp, 16384).map(|(_, made)| made)),
    Row::new("guest: 65536 completion queues, then FLR", |a| {
        let (mut hca, made) = many(a, Kind::Cq, 65536)?;
        hca.bus_mut().reset()?;
        Ok(made)
    }),
    Row::new("guest: 380000 completion queues, then FLR", |a| {
        let (mut hca, made) = many(a, Kind::Cq, 380_000)?;
        hca.bus_mut().reset()?;
        Ok(made)
    }),
    Row::new("guest: 380000 completion queues, torn down with them", |a| {
        let (mut hca, made) = many(a, Kind::Cq, 380_000)?;
        hca.execute(Opcode::TeardownHca, 0, vec![0; OutHeader::SIZE], OutHeader::SIZE)?;
        Ok(made)
    }),
    Row::new("guest: 16384 queue pairs made and destroyed, over and over", churned),
    Row::new("guest: 256 queue pairs with traffic, then FLR", busy_reset),
    Row::new("guest: datagrams to a multicast group with all members that it can have", multicast).switched(),
];

/// Makes many objects; they are there as long as the driver.
fn many(attacker: &Attacker, kind: Kind, count: u32) -> Result<(Driver, String), Failure> {
    // Pages for the firmware, too: 512 bytes for each completion queue.
    let mut hca = attacker.driver(6 * MEMORY)?;
    let ground = Ground::new(&mut hca)?;
    let made = create(&mut hca, &ground, kind, count)?.len();
    Ok((hca, format!("{made} {kind:?} made")))
}

/// Makes and destroys as many as ever are there at a time, over and over.
///
/// # Errors
/// A command failed.
pub fn churned(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(4 * MEMORY)?;
    let ground = Ground::new(&mut hca)?;
    let mut made = 0;
    for _ in attacker.rounds() {
        let numbers = create(&mut hca, &ground, Kind::Qp, 16384)?;
        made += numbers.len();
        destroy(&mut hca, Kind::Qp, &numbers)?;
    }
    Ok(format!("{made} made and destroyed"))
}

/// All of them are in the middle of something when the adapter is reset.
fn busy_reset(attacker: &Attacker) -> Result<String, Failure> {
    const LEN: usize = 1 << 15;
    let options = Options { memory: LEN, mtu: 1, ..Options::default() };
    let (mut hca, mut all) = several(attacker, 256, &options)?;
    for ends in &mut all {
        let (sge, far) = ([ends[0].sge(0, LEN)], ends[1].mr);
        while ends[0].qp.queue_send(&SendRequest::write(1, &sge, far.address, far.key)).is_ok() {}
        ends[0].qp.ring_doorbell(hca.bus_mut());
    }
    std::thread::sleep(Duration::from_millis(20));
    hca.bus_mut().reset()?;
    Ok(format!("{} queue pairs", 2 * all.len()))
}

/// Each datagram of one adapter becomes as many copies as the group has members at another.
fn multicast(attacker: &Attacker) -> Result<String, Failure> {
    const GROUP: (u64, u64) = (0xff12_401b_ffff_0000, 0x1234);
    const GROUP_LID: Lid = Lid(0xc001);
    const LEN: usize = 2048;
    let options = Options { cqes: 1 << 16, ..Options::default() };
    let mut pair = attacker.pair(&options)?;
    let mut other = Pair::connect(vec![driver(attacker.bus(BYSTANDER, MEMORY)?)?], &options)?;
    let room = [pair.ends[0].sge(0, 4096)];
    let mut members = Vec::new();
    loop {
        let qp = datagram_qp(&mut pair)?;
        let mut mcg = McgIn::new();
        mcg.set(McgIn::QPN, qp.number().0).set(McgIn::GID_H, GROUP.0).set(McgIn::GID_L, GROUP.1);
        match pair.hcas[0].execute(Opcode::AttachToMcg, 0, mcg.bytes().to_vec(), OutHeader::SIZE) {
            Ok(_) => members.push(qp),
            Err(why) if members.is_empty() => return Err(why.into()),
            Err(_) => break,
        }
    }
    let mut sender = datagram_qp(&mut other)?;
    let to = Datagram {
        qpn: Qpn(0xff_ffff),
        qkey: InitAttr::default().qkey,
        lid: GROUP_LID,
        sl: 0,
        gid: Some(Gid::new(GROUP.0, GROUP.1)),
    };
    let sge = [other.ends[0].sge(0, LEN)];
    let (mut copies, mut sent, mut last) = (0, 0, None);
    for _ in attacker.rounds() {
        for qp in &mut members {
            while qp.post_recv(1, &room).is_ok() {}
        }
        let request = SendRequest::new(1, SendOp::Datagram { to, imm: None }, &sge);
        while sender.queue_send(&request).is_ok() {
            sent += 1;
        }
        sender.ring_doorbell(other.hcas[0].bus_mut());
        std::thread::sleep(Duration::from_millis(1));
        while let Some(completion) = pair.ends[0].recv_cq.poll() {
            if let Some(qp) = members.iter_mut().find(|qp| qp.number() == completion.qpn) {
                qp.finish(&completion);
            }
            copies += 1;
        }
        while let Some(completion) = other.ends[0].send_cq.poll() {
            sender.finish(&completion);
            last = Some(completion.status);
        }
    }
    match copies {
        0 => Err(format!("no copy of {sent} datagrams came to {} members, {last:?}", members.len()).into()),
        _ => Ok(format!("{} members, {sent} datagrams, {copies} copies", members.len())),
    }
}

/// A queue pair for datagrams, ready to send and to receive.
fn datagram_qp(pair: &mut Pair<VfioUserBus>) -> Result<Qp<WindowMemory>, Failure> {
    let ud = QpConfig::ud(pair.ends[0].pd, &pair.ends[0].send_cq, &pair.ends[0].recv_cq);
    let mut qp = pair.hcas[0].create_qp(&ud)?;
    pair.hcas[0].qp_to_init(&mut qp, &InitAttr::default())?;
    pair.hcas[0].ud_to_rtr(&mut qp)?;
    pair.hcas[0].qp_to_rts(&mut qp, &RtsAttr::default())?;
    Ok(qp)
}
