//! The states of a queue pair, and the way from one to another.

use super::*;

impl<B: Bus> Hca<B> {
    /// RESET to INIT: port, partition and rights. Receives may be posted from now on.
    pub fn qp_to_init(&mut self, qp: &mut Qp<B::Dma>, attr: &InitAttr) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        let qpc = input.qpc_mut();
        qpc.set(Qpc::COUNTER_SET_ID, attr.counter_set.into());
        set_access(qpc, attr.access, self.atomic_mode());
        qpc.set(Qpc::DBR_ADDR, qp.record.bus_address());
        if qp.config.service.is_datagram() {
            qpc.set(Qpc::Q_KEY, attr.qkey).set(Qpc::DETH_SQPN, attr.source.0);
        }
        let path = qpc.primary_path_mut();
        path.set(AddressPath::PKEY_INDEX, attr.pkey_index.into());
        path.set(AddressPath::VHCA_PORT_NUM, attr.port.into());
        self.modify_qp(qp, Opcode::Rst2InitQp, QpState::Init, input)
    }

    /// Takes a stream of an initiator out of error: its requests are executed again. In RTS.
    pub fn qp_reset_stream(&mut self, qp: &mut Qp<B::Dma>, stream: u16) -> Result<(), Error> {
        let mut ext = QpcExt::new();
        ext.set(QpcExt::DCI_STREAM_CHANNEL_ID, stream.into());
        self.modify_extension(qp, Opcode::Rts2RtsQp, opt_95_32::DCI_STREAM_CHANNEL_ID, &ext)
    }

    /// Puts requests and answers of a queue pair in RTS into groups ([`Hca::create_scheduling_element`]); 0: into none.
    pub fn qp_set_groups(&mut self, qp: &mut Qp<B::Dma>, groups: [u32; 2]) -> Result<(), Error> {
        let [requester, responder] = groups;
        let mut ext = QpcExt::new();
        ext.set(QpcExt::QOS_QUEUE_GROUP_ID_REQUESTER, requester);
        ext.set(QpcExt::QOS_QUEUE_GROUP_ID_RESPONDER, responder);
        self.modify_extension(qp, Opcode::Rts2RtsQp, opt_95_32::QOS_QUEUE_GROUP_ID, &ext)
    }

    fn modify_extension(
        &mut self,
        qp: &mut Qp<B::Dma>,
        opcode: Opcode,
        mask: u64,
        ext: &QpcExt,
    ) -> Result<(), Error> {
        let mut plain = ModifyQpIn::new();
        plain.set(ModifyQpIn::QPN, qp.number.0).set(ModifyQpIn::OPT_PARAM_MASK_95_32, mask);
        qp.common(plain.qpc_mut());
        let mut input = ModifyQpExtIn::from_prefix_or_zero(plain.bytes());
        input.set(ModifyQpExtIn::QPC_EXT, 1);
        *input.ext_mut() = *ext;
        self.execute(opcode, 0, input.bytes().to_vec(), OutHeader::SIZE).map(drop)
    }

    /// Stays in INIT: from now on a signature error drains the send queue, with an event.
    pub fn qp_drain_on_signature_errors(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::DRAIN_SIGERR).qpc_mut().set(Qpc::DRAIN_SIGERR, 1);
        self.modify_qp(qp, Opcode::Init2InitQp, QpState::Init, input)
    }

    /// INIT to RTR: who the peer is. Its requests are served from now on.
    pub fn qp_to_rtr(&mut self, qp: &mut Qp<B::Dma>, attr: &RtrAttr) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        let qpc = input.qpc_mut();
        qpc.set(Qpc::REMOTE_QPN, attr.remote_qpn.0).set(Qpc::MTU, attr.mtu.into());
        qpc.set(Qpc::NEXT_RCV_PSN, attr.receive_psn.get()).set(Qpc::MIN_RNR_NAK, attr.rnr_timer.into());
        qpc.set(Qpc::LOG_RRA_MAX, log2_of(attr.responder_reads.into())?);
        set_path(qpc.primary_path_mut(), &attr.path);
        let log_msg_max = self.caps().get(General::LOG_MAX_MSG);
        input.qpc_mut().set(Qpc::LOG_MSG_MAX, log_msg_max);
        self.modify_qp(qp, Opcode::Init2RtrQp, QpState::Rtr, input)
    }

    /// INIT to RTR of a datagram queue pair, which has no peer.
    pub fn ud_to_rtr(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        let log_msg_max = self.caps().get(General::LOG_MAX_MSG);
        input.qpc_mut().set(Qpc::MTU, DATAGRAM_MTU).set(Qpc::LOG_MSG_MAX, log_msg_max);
        self.modify_qp(qp, Opcode::Init2RtrQp, QpState::Rtr, input)
    }

    /// INIT to RTR of an initiator of dynamic connections, which has no peer. `mtu` is an IBTA code.
    pub fn dci_to_rtr(&mut self, qp: &mut Qp<B::Dma>, mtu: u8) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        let log_msg_max = self.caps().get(General::LOG_MAX_MSG);
        input.qpc_mut().set(Qpc::MTU, mtu.into()).set(Qpc::LOG_MSG_MAX, log_msg_max);
        self.modify_qp(qp, Opcode::Init2RtrQp, QpState::Rtr, input)
    }

    /// RTR to RTS: how to send. Send requests are executed from now on.
    pub fn qp_to_rts(&mut self, qp: &mut Qp<B::Dma>, attr: &RtsAttr) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        let qpc = input.qpc_mut();
        qpc.set(Qpc::NEXT_SEND_PSN, attr.send_psn.get());
        if qp.config.service.is_reliable() {
            qpc.set(Qpc::RETRY_COUNT, attr.retries.into()).set(Qpc::RNR_RETRY, attr.rnr_retries.into());
            qpc.set(Qpc::LOG_SRA_MAX, log2_of(attr.initiator_reads.into())?);
            qpc.set(Qpc::LOG_ACK_REQ_FREQ, LOG_ACK_REQ_FREQ);
            qpc.primary_path_mut().set(AddressPath::ACK_TIMEOUT, attr.timeout.into());
        }
        self.modify_qp(qp, Opcode::Rtr2RtsQp, QpState::Rts, input)
    }

    /// Changes what the peer may do, in INIT, RTR or RTS order of the state machine: here RTS to RTS.
    pub fn qp_set_access(&mut self, qp: &mut Qp<B::Dma>, access: Access) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::RRE | opt::RWE | opt::RAE);
        set_access(input.qpc_mut(), access, self.atomic_mode());
        self.modify_qp(qp, Opcode::Rts2RtsQp, QpState::Rts, input)
    }

    /// Has the queue pair count into another set, in RTS.
    pub fn qp_set_counters(&mut self, qp: &mut Qp<B::Dma>, set: CounterSet) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::COUNTER_SET);
        input.qpc_mut().set(Qpc::COUNTER_SET_ID, set.0.into());
        self.modify_qp(qp, Opcode::Rts2RtsQp, QpState::Rts, input)
    }

    /// Sets the connection's alternate path and makes it ready to migrate, in RTS: as soon as the peer has one too, it
    /// is armed (see [`Hca::qp_migration`]), and an end whose retries are used up goes on over the alternate path with
    /// event `PathMigrated` at both. `timeout` is that of [`RtsAttr`].
    pub fn qp_rearm(&mut self, qp: &mut Qp<B::Dma>, alternate: &Path, timeout: u8) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::ALT_PATH | opt::PM_STATE);
        input.qpc_mut().set(Qpc::PM_STATE, path_migration::REARM);
        let path = input.qpc_mut().secondary_path_mut();
        set_path(path, alternate);
        path.set(AddressPath::ACK_TIMEOUT, timeout.into());
        path.set(AddressPath::VHCA_PORT_NUM, alternate.port.max(1).into());
        path.set(AddressPath::PKEY_INDEX, alternate.pkey_index.into());
        self.modify_qp(qp, Opcode::Rts2RtsQp, QpState::Rts, input)
    }

    /// Migrates an armed connection to its alternate path.
    pub fn qp_migrate(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::PM_STATE);
        input.qpc_mut().set(Qpc::PM_STATE, path_migration::MIGRATED);
        self.modify_qp(qp, Opcode::Rts2RtsQp, QpState::Rts, input)
    }

    /// RoCE: from now on packets leave with that DSCP and the own address of that index, in RTS.
    pub fn qp_set_sender(&mut self, qp: &mut Qp<B::Dma>, dscp: u8, sgid_index: u8) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::OPT_PARAM_MASK, opt::DSCP | opt::SRC_ADDR_INDEX);
        let path = input.qpc_mut().primary_path_mut();
        path.set(AddressPath::DSCP, dscp.into()).set(AddressPath::SRC_ADDR_INDEX, sgid_index.into());
        self.modify_qp(qp, Opcode::Rts2RtsQp, QpState::Rts, input)
    }

    /// The state of path migration: see [`hca_spec::qpc::path_migration`].
    pub fn qp_migration(&mut self, qp: &Qp<B::Dma>) -> Result<u32, Error> {
        Ok(self.query_qp(qp)?.get(Qpc::PM_STATE))
    }

    /// RTS to SQD (send queue drained): no further request is started. With `event`, the adapter tells with an
    /// event when those that were started are done; the state in [`Hca::query_qp`] says it too.
    pub fn qp_to_drained(&mut self, qp: &mut Qp<B::Dma>, event: bool) -> Result<(), Error> {
        let mut input = ModifyQpIn::new();
        input.set(ModifyQpIn::SQD_EVENT, event.into());
        self.modify_qp(qp, Opcode::Rts2SqdQp, QpState::SqDrained, input)
    }

    /// SQD to RTS: send requests are executed again. Fails while the send queue still drains.
    pub fn qp_drained_to_rts(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        self.modify_qp(qp, Opcode::Sqd2RtsQp, QpState::Rts, ModifyQpIn::new())
    }

    /// SQEr (send queue error) to RTS: after a failed send request of a datagram or unreliable queue pair.
    pub fn qp_recover_sends(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        self.modify_qp(qp, Opcode::SqErr2RtsQp, QpState::Rts, ModifyQpIn::new())
    }

    /// To ERR from any state: everything outstanding completes with "flushed".
    pub fn qp_to_error(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        self.object_command(Opcode::ToErrQp, qp.number.0)?;
        qp.state = QpState::Error;
        Ok(())
    }

    /// To RESET from any state: everything outstanding is discarded without a completion.
    ///
    /// Completions that came before are still in the completion queue: poll them first.
    pub fn qp_to_reset(&mut self, qp: &mut Qp<B::Dma>) -> Result<(), Error> {
        self.object_command(Opcode::ToRstQp, qp.number.0)?;
        qp.state = QpState::Reset;
        qp.send.reset();
        qp.recv.reset();
        qp.doorbell = None;
        qp.record.store32(RECORD_RECEIVE, 0);
        qp.record.store32(RECORD_SEND, 0);
        Ok(())
    }

    fn modify_qp(
        &mut self,
        qp: &mut Qp<B::Dma>,
        opcode: Opcode,
        next: QpState,
        mut input: ModifyQpIn,
    ) -> Result<(), Error> {
        input.set(ModifyQpIn::QPN, qp.number.0);
        qp.common(input.qpc_mut());
        if input.get(ModifyQpIn::OPT_PARAM_MASK) & opt::PM_STATE == 0 {
            input.qpc_mut().set(Qpc::PM_STATE, path_migration::MIGRATED);
        }
        self.execute(opcode, 0, input.bytes().to_vec(), OutHeader::SIZE)?;
        qp.state = next;
        Ok(())
    }
}
