//! Everything over again, on memory that answers each read later, in random order, after more or fewer other events: the
//! other files' tests hold there, too. What is left out measures modelled time, which goes on while memory is waited for.
//!
//! What is of this kind of memory alone is in `parked.rs`.

use hca_tests::in_process::{deferring, deferring_from};

/// A module for each file of tests, with those of its tests that are run again.
macro_rules! again {
    ($($file:ident: $($test:ident)*;)*) => {
        $(mod $file {
            $(#[test]
            fn $test() {
                for seed in [7, 12345] {
                    super::deferring(seed, crate::$file::$test);
                }
                // A part of what they use answers at once.
                super::deferring_from(7, 1 << 16, crate::$file::$test);
            })*
        })*
    };
}

/// The same of the files about Ethernet.
macro_rules! ethernet_again {
    ($($file:ident: $($test:ident)*;)*) => {
        mod ethernet {
            $(mod $file {
                $(#[test]
                fn $test() {
                    for seed in [7, 12345] {
                        super::super::deferring(seed, crate::ethernet::$file::$test);
                    }
                    super::super::deferring_from(7, 1 << 16, crate::ethernet::$file::$test);
                })*
            })*
        }
    };
}

ethernet_again! {
    flow: entries chains addresses_and_tags;
    frames:
        every_length check_sequences_are_kept inline_and_gathered checksums_are_inserted_and_checked tags_go_in_and_out
        large_sends several_frames_in_a_request hashes_choose_queues;
    merge: segments_become_one sessions_end time_is_up;
    links: bad_frames_are_counted bursts_arrive switches_learn;
    pools: strides_are_everybodys a_pool_runs_low frames_that_no_wqe_has_room_for;
    queues:
        frames_without_a_request_are_counted a_receive_queue_fails_and_recovers
        queries_say_how_far_queues_are a_send_queue_fails_and_recovers queues_in_error_are_flushed destroyed_queues_get_nothing
        loopback_by_domain;
    strides: check_sequences_take_room frames_fill_wqes two_bytes_in_front;
    tables: roce_packets_pass_tables packets_are_counted_by_their_sender sniffers_get_copies;
    roce: reliable_connections packets_change_their_sender_in_rts what_is_not_for_the_transport_is_the_nics datagrams
        a_connection_is_for_its_own_address general_services_take_datagrams_of_their_size;
}

again! {
    bad_input:
        a_slot_that_is_rung_again_is_executed_once
        a_command_that_waits_for_pages_is_answered_at_teardown
        doorbells_of_nothing_are_noted a_completion_queue_outside_memory_is_an_event
        a_send_queue_outside_memory_completes_with_an_error
        a_bad_request_waits_for_the_retries_of_its_predecessor
        loads_may_be_longer_than_messages indirect_keys_do_not_multiply_for_ever
        an_idle_queue_pair_in_error_costs_next_to_nothing;
    blueflame:
        messages_of_every_size the_copy_is_executed_and_only_once
        torn_copies_are_doorbells copies_that_do_not_fit long_wqes_go_on_in_memory
        off_unless_asked_for a_send_queue_on_its_own;
    completion:
        data_in_entries resize_in_traffic resize_to_less_than_is_unread moderation overrun
        one_queue_for_many a_collapsed_queue_uses_one_entry;
    counters:
        requests_naks_and_errors_are_counted timeouts_are_counted a_set_changes_in_rts
        all_counters_are_of_one_source;
    dc:
        every_operation from_target_to_target several_initiators packets_with_grh
        small_messages_in_the_completion receiver_not_ready
        a_wrong_key_is_counted_and_told a_refused_request_costs_the_initiator
        a_message_too_long no_such_target draining connections_are_made_anew
        over_a_bad_link;
    dc_paging: sender_and_receiver_wait the_target_of_a_write_is_waited_for;
    dc_sessions:
        only_packets_of_the_connection_count a_message_that_is_not_finished_is_flushed
        the_key_counts_in_every_packet draining_has_an_end
        a_reserved_opcode_ends_a_connection a_grh_is_for_the_targets_port;
    encryption: every_operation signatures_and_encryption wrapped_keys;
    errors:
        receiver_not_ready_is_waited_for receiver_not_ready_for_too_long_is_an_error
        a_silent_peer_is_an_error_after_the_retries strangers_are_not_heard
        error_flushes_everything_in_order reset_forgets_and_the_pair_reconnects
        bad_remote_access_is_refused bad_local_access_is_an_error
        too_long_for_the_receiver completion_queue_overrun_is_an_event;
    events:
        doorbells_in_pages_of_others an_event_for_each_completion_once arming
        event_queues_by_vector a_completion_queue_moves a_shared_queue_that_cannot_be_read;
    faults:
        remote_keys remote_rights local_keys local_write lengths work_requests states
        partitions_and_q_keys services;
    fuzz:
        templates_are_valid command_mailboxes work_queue_entries register_accesses packets
        management_datagrams tunnels;
    global_routes: connections_with_one connections_without_one datagrams_are_for_their_port;
    keys:
        pages_up_to_1_gib regions_of_more_than_4_gib lists_of_pieces strided_layouts
        strided_layouts_in_lists lists_of_blocks depth_is_limited pieces_are_checked
        fast_registration changes_that_are_refused keys_hold_their_domain
        loaded_translations_take_pages;
    loopback:
        up_and_down_again commands_overlap sends_of_every_size
        writes_and_reads_of_every_size every_mtu gather_and_scatter_across_pages
        inline_data unsignalled_requests_complete_with_the_next_signalled rings_wrap
        both_directions_at_once;
    malformed: malformed_packets_are_counted_and_dropped;
    opcodes: a_reliable_connection_refuses_them an_extended_one_does others_drop_them;
    objects:
        use_is_counted wrong_transitions_are_refused queries_are_truthful
        pages_of_every_size keys_that_are_gone protection_domains_are_separate
        the_firmware_asks_for_pages_and_gives_them_back;
    odp:
        a_sender_waits_for_its_data a_receiver_waits_for_its_buffer
        the_target_of_a_write_is_waited_for both_ends_of_a_read_are_waited_for
        both_ends_of_an_atomic_are_waited_for pages_that_can_not_be_had_are_errors
        pages_that_are_gone_are_not_touched a_reset_forgets_the_fault
        nobody_to_tell_is_an_error implicit_regions_wait_for_their_blocks;
    odp_memory:
        pages_are_asked_for_ahead a_token_is_of_one_fault the_null_key_is_no_page_fault
        only_where_it_is_announced;
    odp_queues:
        receive_buffers_of_a_shared_queue datagrams_wait_for_their_data
        everything_arrives_although_pages_come_and_go;
    pools: pools_in_a_ring;
    qp_life:
        a_send_queue_drains an_idle_send_queue_is_drained
        an_unreliable_send_queue_fails_alone a_reliable_queue_pair_fails_as_a_whole
        a_datagram_send_queue_fails_alone an_overrun_flushes_the_other_queue;
    random: loopback_at_random link_at_random lossy_link_at_random;
    rc_rules:
        credits_hold_sends_back rnr_timers retries_are_counted naks_have_their_completions
        naks_behind_an_rnr_nak_cost_nothing reserved_syndromes_say_nothing
        a_nak_behind_a_lost_response_asks_for_it a_refused_message_completes_its_receive_request
        a_sequence_error_repeats_from_there a_fence_waits_for_reads
        reads_and_atomics_keep_to_the_initiators_depth
        requests_are_executed_in_order_and_once atomics_are_executed_once
        duplicate_reads_are_answered_from_where_they_ask the_responders_depth_is_a_limit;
    services: datagrams general_services_of_partitions atomics shared_receive_queue;
    signatures: insert_pass_and_strip signatures_are_cut_by_packets errors_are_told_once errors_drain_the_queue refusals;
    stress:
        counters_wrap psns_wrap_under_loss global_routes unreliable_connections
        many_queue_pairs;
    tags:
        messages_find_their_buffers messages_that_nothing_is_for receiver_not_ready messages_without_a_tag
        entries_are_taken_out announced_data_is_fetched many_are_fetched announcements_left_to_software
        data_that_will_not_come changes_that_cannot_be_made fetching_waits_for_ready_to_send;
    tags_paging:
        messages_wait_for_the_pages_of_their_entry data_that_is_fetched_waits_for_pages
        an_entry_without_a_page_is_an_error_in_the_transport_scheme;
    windows:
        windows_open_a_part_of_a_region nothing_else_is_open
        a_window_is_no_stronger_than_its_region windows_stay_in_their_domain
        type_2_is_bound_to_a_queue_pair unbinding_closes binding_what_is_bound
        peers_invalidate_windows_of_type_2 peers_invalidate_nothing_else
        zero_based_windows;
    xrc:
        sends_go_to_the_queue_they_name every_operation an_empty_queue_is_waited_for
        wrong_queues_are_refused the_queue_decides_over_the_domain limit_event;
}

/// A checker sees what answers at once, though another part of the memory does not: so it is with QEMU's guests, whose ROMs are reached by
/// messages.
#[test]
fn a_checker_sees_what_answers_at_once() {
    let tests: [fn(); 5] = [
        crate::checker::nothing_is_said_of_a_driver_that_does_it_right,
        crate::checker::a_doorbell_without_the_counter,
        crate::checker::a_counter_without_the_doorbell,
        crate::checker::completions_that_nobody_reads,
        crate::checker::a_peer_that_waits_for_ever_for_a_receive_request,
    ];
    tests.into_iter().for_each(|test| deferring_from(7, usize::MAX, test));
    for area in ["mailboxes", "event queues", "completion queues", "doorbells", "receive queues"] {
        let table = deferring_from(7, usize::MAX, || hca_tests::mistakes::run(area));
        assert!(table.is_good(), "{table}");
    }
}
