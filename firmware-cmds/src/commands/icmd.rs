//! The ICMD mailbox: what tools ask the firmware directly, without a driver.
//!
//! Its one opcode is access to a register, as TLVs: the operation, then the register. Source: mstflint (`mtcr_ul`,
//! `mreg_send_raw`; field use).

use hca_spec::cmd::reg;
use hca_spec::command::Status;
use hca_spec::management::{
    CLASS_REGISTER, IcmdCapabilities, IcmdFirmwareInfo, METHOD_GET, METHOD_SET, OperationTlv, RegisterTlv,
    icmd, tlv_status,
};

use super::dump_reg;
use super::register::{self, Denied};
use crate::effect::Effect;
use crate::firmware::Firmware;
use crate::object::Kind;
use crate::ports::Ports;
use crate::tracer::Message;

/// [`OperationTlv::TYPE`].
const OPERATION: u32 = 1;
/// [`RegisterTlv::TYPE`].
const REGISTER: u32 = 3;
/// Where the register's bytes begin in the mailbox.
const DATA: usize = OperationTlv::SIZE + RegisterTlv::SIZE;

impl Firmware {
    /// Executes what is in the mailbox, about these ports, and leaves the answer there. Returns the status
    /// ([`hca_spec::management::icmd`]): that of an access to a register is in the mailbox.
    ///
    /// The effects are what the hardware has to follow, in order.
    pub fn icmd(
        &mut self,
        ports: &mut Ports,
        opcode: u32,
        mailbox: &mut [u8],
        effects: &mut Vec<Effect>,
    ) -> u32 {
        std::mem::swap(&mut self.ports, ports);
        let status = match opcode {
            icmd::REGISTER => self.register_by_tlv(mailbox, effects),
            icmd::QUERY_CAP => self.icmd_capabilities(mailbox),
            icmd::FIRMWARE_INFO => self.icmd_firmware(mailbox),
            _ => icmd::INVALID_OPCODE,
        };
        self.ports.tracer.record(Message::Mailbox { opcode, status });
        std::mem::swap(&mut self.ports, ports);
        status
    }

    fn icmd_capabilities(&self, mailbox: &mut [u8]) -> u32 {
        let there = |register| register::is_present(self.config.port_kind, register).into();
        let mut out = IcmdCapabilities::new();
        out.set(IcmdCapabilities::NV_ACCESS, there(reg::MNVDA));
        out.set(IcmdCapabilities::ALLOW_ICMD_ACCESS_REG_ON_ALL_REGISTERS, 1);
        out.set(IcmdCapabilities::PCAM_REG, there(reg::PCAM))
            .set(IcmdCapabilities::MCAM_REG, there(reg::MCAM));
        out.set(IcmdCapabilities::QCAM_REG, there(reg::QCAM));
        mailbox.iter_mut().zip(out.bytes()).for_each(|(to, from)| *to = *from);
        icmd::OK
    }

    fn icmd_firmware(&self, mailbox: &mut [u8]) -> u32 {
        let version = self.ports.flash.running();
        let [first, last] = self.personality().psid();
        let mut out = IcmdFirmwareInfo::new();
        out.set(IcmdFirmwareInfo::INFO_MAJOR, version.major.into());
        out.set(IcmdFirmwareInfo::INFO_MINOR, version.minor.into());
        out.set(IcmdFirmwareInfo::INFO_SUBMINOR, version.subminor.into());
        out.set(IcmdFirmwareInfo::INFO_PSID_FIRST, first).set(IcmdFirmwareInfo::INFO_PSID_LAST, last);
        mailbox.iter_mut().zip(out.bytes()).for_each(|(to, from)| *to = *from);
        icmd::OK
    }

    fn register_by_tlv(&mut self, mailbox: &mut [u8], effects: &mut Vec<Effect>) -> u32 {
        let mut operation = OperationTlv::from_prefix_or_zero(mailbox);
        let tlv = RegisterTlv::from_prefix_or_zero(mailbox.get(OperationTlv::SIZE..).unwrap_or_default());
        if operation.get(OperationTlv::TYPE) != OPERATION {
            return icmd::INVALID_COMMAND;
        }
        // The TLV's length counts its head.
        let len = (tlv.get(RegisterTlv::LEN) as usize).saturating_sub(1).saturating_mul(4);
        let room = mailbox.len().saturating_sub(DATA);
        let data =
            mailbox.get(DATA..).and_then(|data| data.get(..len.min(room))).unwrap_or_default().to_vec();
        let write = operation.get(OperationTlv::METHOD);
        let status = if operation.get(OperationTlv::CLASS) != CLASS_REGISTER {
            tlv_status::CLASS
        } else if tlv.get(RegisterTlv::TYPE) != REGISTER {
            tlv_status::UNKNOWN_TLV
        } else if len > room {
            tlv_status::BAD_PARAMETER
        } else if !matches!(write, METHOD_GET | METHOD_SET) {
            tlv_status::METHOD
        } else {
            let id = operation.get(OperationTlv::REGISTER_ID);
            match register::access(self, id, write == METHOD_SET, &data, effects) {
                Ok(value) => {
                    let to = mailbox.iter_mut().skip(DATA);
                    to.zip(value).for_each(|(to, from)| *to = from);
                    tlv_status::OK
                }
                Err(Denied::Unknown(_)) => tlv_status::NO_REGISTER,
                Err(Denied::Method(_)) => tlv_status::METHOD,
                Err(Denied::Value(failure)) if failure.status == Status::BadInputLength => {
                    tlv_status::TOO_SHORT
                }
                Err(Denied::Value(_)) => tlv_status::BAD_PARAMETER,
            }
        };
        operation.set(OperationTlv::RESPONSE, 1).set(OperationTlv::STATUS, status);
        mailbox.iter_mut().zip(operation.bytes()).for_each(|(to, from)| *to = *from);
        icmd::OK
    }
}

/// Objects that a dump in the mailbox has in it at most ([`dump_reg::objects`]).
pub fn dumped_by(fw: &Firmware, opcode: u32, mailbox: &[u8]) -> Vec<(Kind, u32)> {
    let register = OperationTlv::from_prefix_or_zero(mailbox).get(OperationTlv::REGISTER_ID);
    match opcode {
        icmd::REGISTER => dump_reg::objects(fw, register, mailbox.get(DATA..).unwrap_or_default()),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Config;

    fn ask(fw: &mut Firmware, ports: &mut Ports, register: u32, method: u32, data: &[u8]) -> (u32, Vec<u8>) {
        let mut operation = OperationTlv::new();
        operation.set(OperationTlv::TYPE, OPERATION).set(OperationTlv::LEN, 4);
        operation.set(OperationTlv::REGISTER_ID, register).set(OperationTlv::METHOD, method);
        operation.set(OperationTlv::CLASS, CLASS_REGISTER).set(OperationTlv::TRANSACTION_ID, 77);
        let mut tlv = RegisterTlv::new();
        tlv.set(RegisterTlv::TYPE, REGISTER).set(RegisterTlv::LEN, data.len() as u32 / 4 + 1);
        let mut mailbox = [&operation.bytes()[..], tlv.bytes(), data].concat();
        mailbox.resize(icmd::MAILBOX_BYTES, 0);
        assert_eq!(fw.icmd(ports, icmd::REGISTER, &mut mailbox, &mut Vec::new()), icmd::OK);
        let operation = OperationTlv::from_prefix_or_zero(&mailbox);
        assert_eq!(
            (operation.get(OperationTlv::RESPONSE), operation.get(OperationTlv::TRANSACTION_ID)),
            (1, 77)
        );
        (operation.get(OperationTlv::STATUS), mailbox.split_off(DATA))
    }

    #[test]
    fn registers() {
        let config = Config::default();
        let (mut fw, mut ports) = (Firmware::new(config.clone()), Ports::new(config));
        let mut ask = |register, method, data: &[u8]| ask(&mut fw, &mut ports, register, method, data);
        let (status, mgir) = ask(reg::MGIR, METHOD_GET, &[0; 0xa0]);
        assert_eq!((status, &mgir[2..4], &mgir[0x30..0x37]), (0, &[0x10, 0x13][..], &b"SHC_218"[..]));
        assert_eq!(mgir[0x20..0x24], [0, 12, 28, 0xd6]);
        assert_eq!(ask(0x9fff, METHOD_GET, &[0; 16]).0, tlv_status::NO_REGISTER);
        assert_eq!(ask(reg::MGIR, METHOD_SET, &[0; 0xa0]).0, tlv_status::METHOD);
        assert_eq!(ask(reg::MGIR, 3, &[0; 0xa0]).0, tlv_status::METHOD);
        assert_eq!(ask(reg::NODE_DESC, METHOD_SET, &[0; 4]).0, tlv_status::TOO_SHORT);
        assert_eq!(ask(reg::MCQS, METHOD_GET, &[0, 0, 0, 9, 0, 0, 0, 0]).0, tlv_status::BAD_PARAMETER);
        assert_eq!(ask(reg::NODE_DESC, METHOD_SET, &[b'x'; 64]).0, tlv_status::OK);
        assert_eq!(ask(reg::NODE_DESC, METHOD_GET, &[0; 64]).1[..64], [b'x'; 64], "it is the adapter's");
    }

    #[test]
    fn what_is_none() {
        let config = Config::default();
        let (mut fw, mut ports) = (Firmware::new(config.clone()), Ports::new(config));
        let mut run = |opcode, mailbox: &mut [u8]| fw.icmd(&mut ports, opcode, mailbox, &mut Vec::new());
        assert_eq!(run(0x9999, &mut [0; 0x340]), icmd::INVALID_OPCODE);
        assert_eq!(run(icmd::REGISTER, &mut [0; 0x340]), icmd::INVALID_COMMAND);
        for len in 0..0x20 {
            run(icmd::REGISTER, &mut vec![0xff; len]);
        }
    }
}
