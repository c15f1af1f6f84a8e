//! A guest's commands: many at a time, long ones, and rubbish.

use hca_driver::{Bus, Config, Dma, Error, Hca};
use hca_firmware::commands::{Fixture, TABLE};
use hca_spec::cmd::{
    CreateCqIn, CreateMkeyIn, CreateRmpIn, CreateUmemIn, FunctionIn, ManagePagesOut, ModifyCqIn, ObjectIn,
    ObjectOut, PAGES_GIVE, PAGES_TAKE, QueryHcaCapOut,
};
use hca_spec::command::{Opcode, OutHeader};
use hca_spec::ids::Mkey;
use hca_spec::mkc::{ANY_QP, AccessMode, Mkc};
use hca_spec::queue::{Cqc, Wq};

use super::Row;
use super::keys::made;
use super::stage::{ATTACKER, Attacker, Driver, Failure, MEMORY};
use crate::pair::pattern;

/// The cases.
pub const ROWS: &[Row] = &[
    Row::new("guest: commands in all slots, always", all_slots),
    Row::new("guest: rubbish commands in all slots", rubbish),
    Row::new("guest: keys of 2 million pages made and destroyed", long_keys),
    Row::new("guest: user memory of 2 million pages made and destroyed", long_umem),
    Row::new("guest: the longest receive pool in user memory of huge pages, which is refused", huge_pool),
    Row::new("guest: keys of 32 million small pages over user memory of huge ones", huge_keys),
    Row::new("guest: completion queue of 4 million entries, resized over and over", resized),
    Row::new("guest: as many pages as may be given and taken back with one command each", pages),
    Row::new("guest: 2 GiB of pages that do not exist, and keys for them", nonexistent),
    Row::new("guest: the adapter brought up and taken down", up_and_down),
];

/// Pages of the longest list that a command can bring: 16 MiB.
const PAGES_OF_2_MILLION: usize = 2 << 20;
/// MODIFY_CQ op_mod: a new buffer.
const RESIZE: u32 = 1;
/// MODIFY_CQ field selection: log_page_size, page_offset and log_cq_size.
const SHAPE: u32 = 0b111;

fn all_slots(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(MEMORY)?;
    let mut done = 0;
    for _ in attacker.rounds() {
        // General capabilities, current values.
        let inputs = (0..hca.command_slots()).map(|_| ObjectIn::new().bytes().to_vec());
        for slot in hca.begin_all(Opcode::QueryHcaCap, 1, inputs, QueryHcaCapOut::SIZE)? {
            hca.finish(slot)?;
            done += 1;
        }
    }
    Ok(format!("{done} commands"))
}

/// Every command of the table with bytes changed; what each answers is its own.
fn rubbish(attacker: &Attacker) -> Result<String, Failure> {
    // A command may break what events come by.
    let config = Config { command_events: false, command_polls: 2_000_000, ..Config::default() };
    let mut hca = Hca::open(attacker.bus(ATTACKER, MEMORY)?, config)?;
    let memory = hca.bus_mut().dma_alloc(1 << 16, 4096).ok_or("no memory")?;
    let (queue, record) = (memory.bus_address(), memory.bus_address() + 0x8000);
    // Nothing that takes the adapter down: the next commands would not get far.
    let down = [Opcode::TeardownHca, Opcode::DisableHca, Opcode::ManagePages, Opcode::DestroyEq];
    let (mut done, mut refused) = (0, 0);
    'attack: for round in attacker.rounds() {
        let noise = pattern(round + 1, 64);
        for (i, command) in TABLE.iter().filter(|command| !down.contains(&command.opcode)).enumerate() {
            let mut fixture = Fixture::new(queue, record, queue);
            (fixture.datagram_qp, fixture.peer_qp) = (noise[0].into(), noise[1].into());
            let mut input = command.template(&fixture);
            for (at, byte) in noise.iter().enumerate().skip(8) {
                let place = 8 + (usize::from(*byte) * 7 + at * 13 + i) % (input.len().max(9) - 8);
                if let Some(to) = input.get_mut(place) {
                    *to ^= byte;
                }
            }
            let slot = hca.begin(command.opcode, noise[2].into(), input, 1024)?;
            match hca.finish(slot) {
                Ok(_) => {}
                // It waits for pages, or its entry was broken: that is the attacker's own loss.
                Err(Error::Timeout { .. }) => break 'attack,
                Err(_) => refused += 1,
            }
            done += 1;
        }
    }
    Ok(format!("{done} commands, {refused} refused"))
}

/// A list of the same page, as bytes.
fn same_page(page: u64, count: usize) -> Vec<u8> {
    page.to_be_bytes().repeat(count)
}

/// Some page of the attacker's memory.
fn some_page(hca: &mut Driver) -> Result<u64, Failure> {
    let memory = hca.bus_mut().dma_alloc(4096, 4096).ok_or("no memory")?;
    let page = memory.bus_address();
    std::mem::forget(memory);
    Ok(page)
}

/// The longest command that there is: 16 MiB of translations.
fn long_keys(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(2 * MEMORY)?;
    let (pd, page) = (hca.alloc_pd()?, some_page(&mut hca)?);
    let list = same_page(page | 3, PAGES_OF_2_MILLION);
    let mut done = 0;
    for _ in attacker.rounds() {
        let key = made(&mut hca, pd, AccessMode::Mtt, &list, (PAGES_OF_2_MILLION as u64) << 12)?;
        hca.free_key(key)?;
        done += 1;
    }
    Ok(format!("{done} keys"))
}

fn long_umem(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(2 * MEMORY)?;
    let page = some_page(&mut hca)?;
    let list = same_page(page | 3, PAGES_OF_2_MILLION);
    let mut done = 0;
    for _ in attacker.rounds() {
        let mut create = CreateUmemIn::new();
        create.set(CreateUmemIn::NUM_OF_MTT, PAGES_OF_2_MILLION as u64);
        let input = [create.bytes(), &list[..]].concat();
        let out = hca.execute(Opcode::CreateUmem, 0, input, OutHeader::SIZE)?;
        let mut destroy = ObjectIn::new();
        destroy.set(ObjectIn::NUMBER, hca_spec::be32(&out, 8) & 0xff_ffff);
        hca.execute(Opcode::DestroyUmem, 0, destroy.bytes().to_vec(), OutHeader::SIZE)?;
        done += 1;
    }
    Ok(format!("{done} user memories"))
}

/// A user memory of 64 pages of 2^43 bytes.
fn huge_umem(hca: &mut Driver) -> Result<u32, Failure> {
    let list = same_page(3, 64);
    let mut create = CreateUmemIn::new();
    create.set(CreateUmemIn::NUM_OF_MTT, 64).set(CreateUmemIn::LOG_PAGE_SIZE, 31);
    let out = hca.execute(Opcode::CreateUmem, 0, [create.bytes(), &list[..]].concat(), OutHeader::SIZE)?;
    Ok(hca_spec::be32(&out, 8) & 0xff_ffff)
}

/// 2^46 bytes, as 2^34 pages of 4 KiB: a list of them would be 128 GiB.
fn huge_pool(attacker: &Attacker) -> Result<String, Failure> {
    let mut hca = attacker.driver(MEMORY)?;
    let (pd, record, umem) = (hca.alloc_pd()?, some_page(&mut hca)?, huge_umem(&mut hca)?);
    let mut refused = 0;
    for _ in attacker.rounds() {
        let mut create = CreateRmpIn::new();
        let wq = create.rmpc_mut().wq_mut();
        wq.set(Wq::PD, pd.0).set(Wq::DBR_ADDR, record);
        wq.set(Wq::LOG_WQ_STRIDE, 15).set(Wq::LOG_WQ_SZ, 31);
        wq.set(Wq::WQ_UMEM_VALID, 1).set(Wq::WQ_UMEM_ID, umem).set(Wq::WQ_UMEM_OFFSET, 64);
        match hca.execute(Opcode::CreateRmp, 0, create.bytes().to_vec(), ObjectOut::SIZE) {
            Ok(_) => return Err("it was made".into()),
            Err(_) => refused += 1,
        }
    }
    Ok(format!("{refused} refused"))
}

/// The most pages that a key can have, each a part of a huge one.
fn huge_keys(attacker: &Attacker) -> Result<String, Failure> {
    const OCTWORDS: u32 = 1 << 24;
    let mut hca = attacker.driver(MEMORY)?;
    let (pd, umem) = (hca.alloc_pd()?, huge_umem(&mut hca)?);
    let mut done = 0;
    for _ in attacker.rounds() {
        let mut create = CreateMkeyIn::new();
        create.set(CreateMkeyIn::MKEY_UMEM_VALID, 1).set(CreateMkeyIn::MKEY_UMEM_ID, umem);
        create.set(CreateMkeyIn::TRANSLATIONS_OCTWORD_ACTUAL_SIZE, OCTWORDS);
        let mkc = create.mkc_mut();
        mkc.set_access_mode(AccessMode::Mtt).set(Mkc::PD, pd.0).set(Mkc::QPN, ANY_QP).set(Mkc::LR, 1);
        mkc.set(Mkc::LEN, u64::from(OCTWORDS) << 13).set(Mkc::LOG_PAGE_SIZE, 12);
        mkc.set(Mkc::TRANSLATIONS_OCTWORD_SIZE, OCTWORDS).set(Mkc::MKEY_7_0, 1);
        let out = hca.execute(Opcode::CreateMkey, 0, create.bytes().to_vec(), ObjectOut::SIZE)?;
        hca.free_key(Mkey::new(ObjectOut::from_prefix_or_zero(&out).get(ObjectOut::NUMBER), 1))?;
        done += 1;
    }
    Ok(format!("{done} keys"))
}

/// Buffers whose pages are all the same one: the adapter has no way to know.
fn resized(attacker: &Attacker) -> Result<String, Failure> {
    const LOG_SIZE: u32 = 22;
    const LIST: usize = 64 << LOG_SIZE >> 12;
    let mut hca = attacker.driver(MEMORY)?;
    let (page, record) = (some_page(&mut hca)?, some_page(&mut hca)?);
    let list = same_page(page, LIST);
    let mut create = CreateCqIn::new();
    let cqc = create.cqc_mut();
    cqc.set(Cqc::LOG_CQ_SIZE, LOG_SIZE).set(Cqc::UAR_PAGE, hca.uar().0).set(Cqc::DBR_ADDR, record);
    let eq = hca.create_eq(64, 1)?;
    create.cqc_mut().set(Cqc::C_EQN, eq.number().0.into());
    let input = [create.bytes(), &list[..]].concat();
    let out = hca.execute(Opcode::CreateCq, 0, input, OutHeader::SIZE)?;
    let cqn = hca_spec::be32(&out, 8) & 0xff_ffff;
    let mut done = 0;
    for _ in attacker.rounds() {
        let mut modify = ModifyCqIn::new();
        modify.set(ModifyCqIn::CQN, cqn).set(ModifyCqIn::FIELD_SELECT, SHAPE);
        modify.cqc_mut().set(Cqc::LOG_CQ_SIZE, LOG_SIZE);
        let input = [modify.bytes(), &list[..]].concat();
        hca.execute(Opcode::ModifyCq, RESIZE, input, OutHeader::SIZE)?;
        done += 1;
    }
    Ok(format!("{done} times"))
}

/// MANAGE_PAGES with a list of addresses; gives the output.
fn manage(hca: &mut Driver, how: u32, count: usize, list: &[u8], out: usize) -> Result<Vec<u8>, Failure> {
    let mut input = FunctionIn::new();
    input.set(FunctionIn::INPUT_NUM_ENTRIES, count as u32);
    let input = [input.bytes(), list].concat();
    Ok(hca.execute(Opcode::ManagePages, how, input, ManagePagesOut::SIZE + out)?)
}

/// Addresses of pages from 2^40 on, where the guest has nothing.
fn nowhere(first: usize, count: usize) -> Vec<u8> {
    (first..first + count).flat_map(|n| ((1u64 << 40) + ((n as u64) << 12)).to_be_bytes()).collect()
}

fn pages(attacker: &Attacker) -> Result<String, Failure> {
    const PAGES: usize = 16_384;
    // Nobody touches them: they cost the guest nothing.
    let mut hca = attacker.driver(MEMORY + PAGES * 4096)?;
    let room = hca.bus_mut().dma_alloc(PAGES * 4096, 4096).ok_or("no room for pages")?;
    let page = |n: usize| (room.bus_address() + ((n as u64) << 12)).to_be_bytes();
    let mut list: Vec<u8> = (0..PAGES).flat_map(page).collect();
    let mut done = 0;
    for _ in attacker.rounds() {
        let count = list.len() / 8;
        manage(&mut hca, PAGES_GIVE, count, &list, 0)?;
        let out = manage(&mut hca, PAGES_TAKE, count, &[], count * 8)?;
        // What comes back are any that it does not use.
        let taken = ManagePagesOut::from_prefix_or_zero(&out).get(ManagePagesOut::OUTPUT_NUM_ENTRIES);
        list = out
            .get(ManagePagesOut::SIZE..)
            .and_then(|l| l.get(..taken as usize * 8))
            .unwrap_or_default()
            .to_vec();
        if list.is_empty() {
            return Err("no page came back".into());
        }
        done += 1;
    }
    Ok(format!("{done} times"))
}

/// The firmware's tables may be as large as the pages that it was given; they are the server's memory.
fn nonexistent(attacker: &Attacker) -> Result<String, Failure> {
    // A little less than the firmware takes at most.
    const PAGES: usize = ((2 << 30) >> 12) - (1 << 14);
    let mut hca = attacker.driver(2 * MEMORY)?;
    let accepted = manage(&mut hca, PAGES_GIVE, PAGES, &nowhere(0, PAGES), 0).is_ok();
    let (pd, page) = (hca.alloc_pd()?, some_page(&mut hca)?);
    let list = same_page(page | 3, PAGES_OF_2_MILLION / 2);
    let mut keys = 0;
    // Longer than other attacks: it is about how much there will be.
    while keys < 256 && made(&mut hca, pd, AccessMode::Mtt, &list, (PAGES_OF_2_MILLION as u64) << 11).is_ok()
    {
        keys += 1;
    }
    let pages = if accepted { "accepted" } else { "refused" };
    Ok(format!("pages {pages}, {keys} keys of 8 MiB"))
}

fn up_and_down(attacker: &Attacker) -> Result<String, Failure> {
    let mut bus = attacker.bus(ATTACKER, MEMORY)?;
    let mut done = 0;
    for _ in attacker.rounds() {
        bus = Hca::open(bus, Config::default())?.close()?;
        done += 1;
    }
    Ok(format!("{done} times"))
}
