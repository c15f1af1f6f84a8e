//! Which structure of `hca-spec` a command's input is.

use hca_spec::cmd::{
    AccessRegIn, CreateSrqIn, FunctionIn, GeneralObjectIn, IntModeration, McgIn, ModifyQpIn, ObjectIn,
    QueryHcaVportContextOut, QueryHcaVportIn, VxlanUdpDportIn,
};
use hca_spec::command::{InHeader, Opcode};
use hca_spec::congestion::{
    CongParamsIn, CongStatisticsIn, CongStatusIn, MODIFY_PARAMS, NotificationParams, ReactionParams,
};
use hca_spec::flow::{FlowIn, FlowListEntry, SetFteIn};
use hca_spec::layout::Layout;
use hca_spec::layout_named;
use hca_spec::nic_vport::{RoceAddressIn, VportIn};

use super::row::Command;

impl Command {
    /// The structure of its input. Commands that name one object, and those that name nothing, share theirs; what is of no fixed
    /// form behind it (lists, registers) is not part of it.
    pub fn input_layout(&self) -> &'static Layout {
        if let Some(own) = layout_named(&format!("{:?}In", self.opcode)) {
            return own;
        }
        use Opcode::*;
        match self.opcode {
            Rst2InitQp | Init2RtrQp | Rtr2RtsQp | Rts2RtsQp | SqErr2RtsQp | Rts2SqdQp | Sqd2SqdQp
            | Sqd2RtsQp | Init2InitQp => &ModifyQpIn::LAYOUT,
            QueryPages | ManagePages => &FunctionIn::LAYOUT,
            MadIfc => &hca_spec::cmd::MadIfc::LAYOUT,
            CreateXrcSrq => &CreateSrqIn::LAYOUT,
            QueryVportState | ModifyVportState | QueryNicVportContext | QueryVnicEnv | QueryRoceAddress => {
                &VportIn::LAYOUT
            }
            SetRoceAddress => &RoceAddressIn::LAYOUT,
            QueryHcaVportContext | ModifyHcaVportContext | QueryHcaVportGid | QueryHcaVportPkey => {
                &QueryHcaVportIn::LAYOUT
            }
            AttachToMcg | DetachFromMcg => &McgIn::LAYOUT,
            QueryCongStatus | ModifyCongStatus => &CongStatusIn::LAYOUT,
            QueryCongParams | ModifyCongParams => &CongParamsIn::LAYOUT,
            QueryCongStatistics => &CongStatisticsIn::LAYOUT,
            DestroyFlowTable | QueryFlowTable | DestroyFlowGroup | QueryFlowGroup | QueryFlowTableEntry
            | DeleteFlowTableEntry => &FlowIn::LAYOUT,
            SetFlowTableEntry => &SetFteIn::LAYOUT,
            CreateGeneralObject | QueryGeneralObject | ModifyGeneralObject | DestroyGeneralObject => {
                &GeneralObjectIn::LAYOUT
            }
            AccessReg => &AccessRegIn::LAYOUT,
            ConfigIntModeration => &IntModeration::LAYOUT,
            AddVxlanUdpDport | DeleteVxlanUdpDport => &VxlanUdpDportIn::LAYOUT,
            _ if self.object.is_some() => &ObjectIn::LAYOUT,
            _ => &InHeader::LAYOUT,
        }
    }

    /// All structures of its input and their first bytes: [`Command::input_layout`], the header, and what lies behind or, where the
    /// input may have several forms, in one place.
    pub fn input_layouts(&self) -> Vec<(&'static Layout, usize)> {
        let mut all = vec![(&InHeader::LAYOUT, 0), (self.input_layout(), 0)];
        match self.opcode {
            // They name a virtual port as its own commands do.
            Opcode::ModifyNicVportContext | Opcode::QueryQCounter => all.push((&VportIn::LAYOUT, 0)),
            // The context lies where it does in the query's output.
            Opcode::ModifyHcaVportContext => all.push((&QueryHcaVportContextOut::LAYOUT, 0)),
            Opcode::ModifyCongParams => {
                all.push((&ReactionParams::LAYOUT, MODIFY_PARAMS));
                all.push((&NotificationParams::LAYOUT, MODIFY_PARAMS));
            }
            Opcode::SetFlowTableEntry => all.push((&FlowListEntry::LAYOUT, SetFteIn::SIZE)),
            _ => {}
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Action;
    use super::super::table::TABLE;
    use super::*;

    /// A command's layout is as long as its row says, or the row has something of another form behind it.
    #[test]
    fn layouts_are_those_of_the_rows() {
        // Rows whose input goes on: with a name, a context that is an output elsewhere, parameters of a point.
        let longer = [Opcode::SetDriverVersion, Opcode::ModifyHcaVportContext, Opcode::ModifyCongParams];
        for command in TABLE {
            let (layout, name) = (command.input_layout(), command.name);
            match longer.contains(&command.opcode) {
                true => assert!(layout.size < command.input, "{name}: {}", layout.name),
                false => assert_eq!(layout.size, command.input, "{name}: {}", layout.name),
            }
        }
    }

    /// Who names an object has a field for its number there.
    #[test]
    fn objects_have_a_field() {
        for command in TABLE {
            let Some(object) = command.object.filter(|object| object.action != Action::Create) else {
                continue;
            };
            let fields = command.input_layout().fields;
            let has = fields.iter().any(|field| field.offset == object.at);
            assert!(
                has,
                "{}: {} has no field at {:#x}",
                command.name,
                command.input_layout().name,
                object.at
            );
        }
    }
}
