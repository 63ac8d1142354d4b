"""Each row of docs/reference/security.md has tests that prove it: here by the words that the row begins with."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "reference" / "security.md"
NOT_PROVEN = ("Not prevented", "Noticed by nobody")  # what a row says that promises nothing

REFUSALS = "unit/master/history/test_refusals.py"
SETTINGS = "unit/seed/instance_types/test_settings.py"
PLACES = "unit/seed/sizing/test_places.py"
CACHE = "unit/seed/instance_types/test_cache.py"
CATALOGUE = "unit/seed/instance_types/test_catalogue.py"
KUBEVIRT = "unit/seed/providers/test_kubevirt_instancetypes.py"
CREDENTIALS = "property/test_credentials.py"
FOOTPRINT = "unit/seed/machines/test_footprint.py"
HOSTILE = "integration/installed/test_hostile.py"
API_CLIENT = "unit/common/kube/client/test_api_client.py"
BOUNDS = "unit/common/kube/client/test_bounds.py"
TLS = "unit/common/kube/client/test_tls.py"
PEM = "unit/common/kube/client/test_bounded_pem.py"
NETWORKS = "unit/common/kube/client/test_networks.py"
THREADS = "unit/common/kube/client/test_tenant_threads.py"
DEEP = "unit/common/kube/client/test_deep_json.py"
TURNS = "unit/seed/webhooks/test_turns.py"
SERVER = "unit/common/server/test_http_server.py"
BOTH_SERVERS = "unit/common/server/test_both_servers.py"
EXPLAIN = "unit/seed/admission/test_explain.py"
OPENSTACK = "unit/seed/providers/test_openstack.py"
USAGE = "unit/seed/accounts/test_usage_writer.py"
WAITS = "unit/seed/accounts/test_waits.py"
NAMES = "integration/installed/test_names.py"
CONFIGURATION = "integration/test_webhook_configuration.py"
QUOTAS = "integration/installed/test_quotas.py"
CONDITIONS = "unit/seed/controllers/test_user_cluster_conditions.py"
RIGHTS = "integration/test_rights.py"
WRITES = "chart/test_write_rights.py"
ROTATION = "unit/seed/registration/test_token_rotation.py"
SUPPLY = "unit/test_supply_chain.py"
IMAGE = "integration/test_image.py"
WORKFLOWS = "unit/test_workflows.py"
IN_NAMESPACES = "unit/seed/kinds/namespaces/test_webhook.py"
PAGES = "unit/common/server/test_page_access.py"
HEALTH = "unit/common/server/test_health.py"

NAMESPACES = "unit/seed/kinds/namespaces/test_cache.py"
OBJECTS = "unit/seed/kinds/namespaces/test_source.py"
PROMISED = "integration/installed/test_allocations.py"
IN_INSTALLED_NAMESPACES = "integration/installed/test_namespaces.py"
LOCAL = "integration/installed/test_local_quotas.py"
COPIES = "unit/seed/projections/test_cluster_copies.py"
IN_EACH = "unit/seed/projections/test_namespace_copies.py"
NOTIFIER = "unit/seed/notifications/test_notifier.py"
OWNER = "chart/test_project_owner.py"
CHARTS = "chart/test_charts.py"
MACHINES = "unit/seed/kinds/machines/test_webhook.py"
MASTER = "integration/test_master_program.py"
HTTP_API = "integration/test_http_api.py"
CERTIFICATES = "integration/test_http_certificates.py"
APP = "unit/master/apiserver/test_app.py"
AUTH = "unit/master/apiserver/test_auth.py"
FLOODS = "unit/master/apiserver/test_floods.py"
LOG_LIMIT = "unit/common/runtime/test_log_limit.py"
LIMITS = "unit/master/apiserver/test_request_limits.py"
DECISIONS = "unit/master/apiserver/test_decisions.py"
MANIFESTS = "unit/master/apiserver/test_manifests.py"
EVENTS = "unit/master/apiserver/test_events.py"
ROUTES = "unit/master/apiserver/test_problem.py"

DISCOVERY = "unit/common/kube/client/test_api_discovery.py"
BOUNDED = "unit/common/api/test_bounded.py"
ESCROW = "unit/common/quota/test_escrow.py"
REPLICATOR = "unit/master/seeds/test_replicator.py"
REMOTE = "unit/master/seeds/test_remote_cache.py"
AGENTS = "unit/master/seeds/test_agent_pages.py"
DECIDED = "unit/master/quotas/test_controller.py"
LISTED_CLUSTERS = "unit/master/apiserver/test_cluster_lists.py"
ONE_CLUSTER = "integration/test_one_cluster.py"
ADMITS_ALLOCATIONS = "unit/seed/kinds/allocations/test_webhook.py"
ORGANIZATION_NAMESPACES = "unit/master/tenancy/test_organization_namespaces.py"
CRDS = "chart/test_crds.py"
COUNTED_PODS = "unit/seed/kinds/namespaces/evaluators/test_pods.py"
PROMISE_TOTALS = "unit/seed/kinds/namespaces/test_promise_totals.py"

ISOLATION = "unit/seed/test_isolation.py"

DELIVERY = "unit/master/notifications/test_delivery.py"
RECEIVER = "unit/master/notifications/test_receiver.py"
NOTIFICATIONS = "unit/master/notifications/test_controller.py"
NOTIFIED_OF = "unit/master/notifications/test_plan.py"
NOTIFIED = "integration/test_notifications.py"
REFLECTOR = "unit/common/kube/controller/test_reflector.py"
SOURCE = "unit/seed/kinds/machines/test_source.py"
UNSIZED = "unit/seed/usage/test_unsized.py"
CLUSTER_API_SOURCE = "unit/seed/kinds/machines/test_cluster_api_source.py"
SPINNING = "unit/common/kube/controller/test_spinning.py"

STOLEN = f"{RIGHTS}::test_a_stolen_token_of_the_agent_gives_neither_secrets_nor_webhooks_of_others"

WEB = "integration/page/test_page.py"
FORMS = "integration/page/test_forms.py"
OIDC = "integration/page/test_oidc.py"
SESSIONS = "unit/master/page/test_session.py"

PROVEN: dict[str, tuple[str, ...]] = {
    "HTML or script in": (
        f"{WEB}::test_what_hostile_users_write_is_shown_as_text",
        f"{WEB}::test_every_page_forbids_frames_and_scripts_of_others",
        "unit/master/page/test_assets.py::test_nothing_in_a_template_needs_what_the_policy_forbids",
        f"{FORMS}::test_a_limit_that_is_wrong_is_named_and_not_written",
        f"{OIDC}::test_what_a_provider_says_went_wrong_is_no_part_of_the_page",
    ),
    "a page of another site that sends a form": (
        f"{WEB}::test_a_session_is_the_browsers_own_and_no_page_of_others_uses_it",
        f"{FORMS}::test_nobody_writes_without_the_right_or_for_another_site",
    ),
    "a session that is planted": (
        f"{WEB}::test_a_session_that_somebody_planted_is_not_taken_over",
        f"{SESSIONS}::test_a_session_is_opened_by_each_replica_with_the_key_and_by_no_other",
        f"{SESSIONS}::test_what_was_sealed_for_something_else_is_no_session",
        f"{OIDC}::test_a_session_of_another_kind_of_cookie_is_none",
    ),
    "steals the cookie of a session": (
        f"{SESSIONS}::test_a_session_ends_with_its_token_and_after_some_hours_at_the_latest",
    ),
    "a link by which one is on another host": (
        f"{SESSIONS}::test_no_browser_is_sent_to_another_host",
        f"{OIDC}::test_a_code_is_good_once_and_nobody_is_sent_to_another_host",
    ),
    "ends a sign-in by the provider": (
        f"{OIDC}::test_a_sign_in_is_ended_only_by_the_browser_that_began_it",
        f"{OIDC}::test_a_code_is_good_once_and_nobody_is_sent_to_another_host",
    ),
    "opens a page of what belongs to others": (
        f"{WEB}::test_who_has_no_right_learns_nothing_not_even_that_something_exists",
    ),
    "an address that leads to a file": (f"{WEB}::test_no_path_leads_to_a_file_or_another_kind",),
    "saves limits over those": (f"{FORMS}::test_an_edit_never_overwrites_another_one",),
    "valid events in all watches": (
        f"{BOUNDS}::test_valid_events_without_a_pause_take_their_share_of_the_event_loop",
        f"{BOUNDS}::test_only_who_uses_much_of_the_event_loop_pauses",
        f"{BOUNDS}::test_api_servers_that_others_run_have_that_share",
        "fuzz/test_hostile_api.py::test_a_hostile_api_server_keeps_nobody_else_waiting",
    ),
    "a TLS server that chooses a key exchange": (
        f"{TLS}::test_no_finite_field_is_offered_to_hosts_that_tenants_choose",
    ),
    "a TLS server with a chain of 60 certificates": (
        f"{TLS}::test_a_server_s_handshake_is_bounded",
        f"{TLS}::test_all_that_comes_before_the_end_of_a_handshake_is_counted",
    ),
    "... with that chain in the kubeconfig": (
        f"{TLS}::test_a_chain_ends_at_what_the_kubeconfig_trusts",
        f"{TLS}::test_no_finite_field_is_offered_to_hosts_that_tenants_choose",
    ),
    "a page of a list with millions": (
        f"{BOUNDS}::test_a_page_has_no_more_objects_than_were_asked_for",
        f"{BOUNDS}::test_so_many_objects_that_cannot_be_read_are_no_list",
    ),
    "a list of empty pages": (f"{BOUNDS}::test_a_list_of_empty_pages_has_an_end",),
    "an object with hundreds of thousands of labels": (
        f"{BOUNDS}::test_an_object_with_very_many_values_or_a_long_name_is_one_broken_object",
        f"{BOUNDS}::test_tokens_and_versions_of_lists_are_not_sent_back_however_long_they_are",
    ),
    "many large answers": (
        f"{BOUNDS}::test_what_is_not_complete_is_bounded_for_all_answers_of_one_api_server",
        f"{BOUNDS}::test_a_large_page_is_read_in_pieces",
    ),
    "a compressed answer": (
        f"{BOUNDS}::test_a_compressed_answer_is_refused_whatever_was_asked_for",
        "unit/seed/instance_types/test_http_client.py"
        "::test_a_cloud_that_compresses_though_nobody_asked_for_it_is_not_read",
    ),
    "interim answers (1xx)": (
        f"{BOUNDS}::test_interim_answers_have_an_end",
        f"{BOUNDS}::test_a_head_is_bounded_and_there_is_one_answer",
        f"{BOUNDS}::test_what_is_no_body_is_bounded",
    ),
    "more answers than requests": (
        f"{BOUNDS}::test_a_head_is_bounded_and_there_is_one_answer",
        f"{BOUNDS}::test_what_comes_after_an_answer_ends_the_connection",
    ),
    "something in a list, an answer or an object makes the program fail": (
        f"{ISOLATION}::test_a_source_that_cannot_be_counted_is_shown_as_old_and_another_is_counted",
        f"{ISOLATION}::test_a_term_that_fails_is_followed_by_another",
        "unit/master/test_isolation.py::test_a_link_that_fails_says_so_and_begins_anew",
        "unit/common/runtime/test_unexpected.py::test_what_fails_a_thousand_times_is_counted_and_does_not_fill_the_log",
    ),
    "an object is changed so that its controller reconciles it again and again": (
        f"{SPINNING}::test_a_key_that_always_calls_for_itself_leaves_the_loop_to_others",
        f"{SPINNING}::test_changes_of_one_key_are_not_put_off_and_one_that_never_ends_is_named_and_counted",
    ),
    "somebody makes a ResourceQuota on a seed by hand": (
        f"{MASTER}::test_a_quota_that_somebody_made_on_a_seed_stops_nothing",
    ),
    "one byte that is not UTF-8": (
        f"{DEEP}::test_text_that_is_no_utf_8_is_malformed_wherever_it_stands",
        f"{API_CLIENT}::test_a_list_that_is_no_utf_8_is_malformed",
        f"{API_CLIENT}::test_whatever_is_wrong_with_an_answer_is_an_error_of_the_api",
        f"{HOSTILE}::test_a_list_with_a_byte_that_is_no_text_takes_no_count_away_and_ends_no_agent",
    ),
    "a Machine or a pod is changed so that it cannot be read": (
        f"{REFLECTOR}::test_what_was_never_read_stands_for_itself_until_it_is_read_or_gone",
        f"{REFLECTOR}::test_a_list_in_which_nobody_can_tell_what_is_missing_takes_nothing_away",
        f"{SOURCE}::test_a_machine_that_cannot_be_read_counts_with_what_was_known_and_is_named",
        f"{UNSIZED}::test_a_new_leader_keeps_what_it_cannot_read",
        f"{UNSIZED}::test_a_new_leader_keeps_what_it_cannot_read_in_namespaces",
        f"{CLUSTER_API_SOURCE}::test_a_new_leader_counts_nothing_anew_where_a_machine_cannot_be_read",
        f"{OBJECTS}::test_an_object_that_cannot_be_read_is_unknown_and_not_nothing",
        f"{HOSTILE}::test_a_list_with_a_byte_that_is_no_text_takes_no_count_away_and_ends_no_agent",
    ),
    "A tenant who is cluster admin of a user cluster labels namespaces there": (
        f"{NAMESPACES}::test_a_namespace_is_in_every_quota_that_selects_it_in_a_cluster_that_takes_part",
    ),
    "A tenant labels a namespace with another's project": (
        "unit/seed/kinds/namespaces/test_projects.py"
        "::test_namespaces_of_its_own_cluster_are_of_its_project_whatever_labels_tenants_write",
        "integration/installed/test_tenancy.py"
        "::test_only_who_may_assign_projects_writes_the_label_and_only_in_shared_clusters",
    ),
    "A tenant who may create namespaces in a shared cluster": (),
    "A tenant who is cluster admin runs pods in": (
        "unit/seed/kinds/namespaces/test_projects.py::test_what_a_cluster_needs_to_run_is_of_no_project",
    ),
    "A cluster admin takes the right to list": (
        f"{IN_INSTALLED_NAMESPACES}::test_what_cannot_be_listed_stops_its_own_quota_alone",
        "property/test_partial_count.py::test_in_part_or_wholly_an_account_has_all_that_is_there",
    ),
    "A CustomResourceDefinition is broken": (
        f"{IN_INSTALLED_NAMESPACES}::test_what_cannot_be_listed_stops_its_own_quota_alone",
        f"{OBJECTS}::test_what_fails_later_keeps_its_count_and_the_rest_goes_on",
    ),
    "Two ResourceQuotas of a namespace are raised": (
        "unit/seed/accounts/test_promises.py"
        "::test_what_is_promised_is_never_above_the_limit_and_the_last_unit_can_be_used",
        "unit/seed/kinds/namespaces/test_promises.py::test_if_the_other_goes_or_is_lowered_meanwhile_nothing_is_admitted_or_kept",
        f"{PROMISED}::test_two_owners_at_once_never_promise_more_and_the_last_unit_can_be_used",
    ),
    "The quota that is made of an allocation": (
        f"{PROMISED}::test_two_owners_at_once_never_promise_more_and_the_last_unit_can_be_used",
    ),
    "An owner deletes the ResourceQuotas": (
        f"{PROMISED}::test_two_owners_at_once_never_promise_more_and_the_last_unit_can_be_used",
        f"{PROMISE_TOTALS}::test_a_namespace_without_a_quota_for_a_resource_is_told",
    ),
    "... or has only one left that limits some pods": (
        f"{PROMISE_TOTALS}::test_a_quota_for_some_pods_alone_does_not_limit_a_namespace",
        f"{PROMISE_TOTALS}::test_a_scope_that_comes_later_is_a_change",
    ),
    "An owner uses all that is promised": (
        f"{PROMISE_TOTALS}::test_what_is_used_stays_promised_when_a_quota_is_lowered_below_it",
        "unit/seed/kinds/namespaces/test_promises.py::test_what_is_used_is_promised_already",
    ),
    "... or lowers it while kube-controller-manager": (
        f"{PROMISE_TOTALS}::test_what_core_still_admits_by_stays_promised_until_the_status_follows",
        f"{PROMISED}::test_what_core_still_admits_by_is_promised_to_nobody_else",
    ),
    "Somebody with the right to write `resourcequotas/status`": (
        f"{PROMISE_TOTALS}::test_what_core_still_admits_by_stays_promised_until_the_status_follows",
    ),
    "... or less use than there is": (),
    "Thousands of ResourceQuotas in one namespace": (
        f"{PROMISE_TOTALS}::test_very_many_quotas_of_one_namespace_cost_no_look_at_all_the_others",
    ),
    "Many or large objects in namespaces": (
        f"{OBJECTS}::test_a_cluster_with_more_than_fits_is_a_problem_of_that_kind",
    ),
    "A namespace with very many pods is relabelled": (
        "property/test_namespaced_totals.py::test_while_a_namespace_comes_in_the_lists_are_those_before",
        "property/test_namespaced_totals.py::test_what_happens_while_a_namespace_comes_in_counts",
        "property/test_namespaced_totals.py::test_what_a_namespace_had_that_leaves_is_freed_in_pieces",
    ),
    "Namespaces with a megabyte of labels": (
        f"{NAMESPACES}::test_namespaces_with_very_many_labels_are_not_kept",
        f"{NAMESPACES}::test_of_a_namespace_nothing_is_kept_that_nobody_reads",
    ),
    "Large or very many ResourceQuotas in a namespace": (
        "unit/seed/kinds/namespaces/test_promises.py::test_a_namespace_with_very_large_quotas_is_not_read_to_its_end",
    ),
    "A Role named with the characters of selectors": (
        f"{IN_NAMESPACES}::test_names_may_have_what_api_servers_take_as_a_part_of_a_path",
        f"{IN_NAMESPACES}::test_names_that_no_path_takes_or_that_mislead_a_reader_are_not_answered",
        f"{OBJECTS}::test_evidence_is_found_whatever_the_name",
        "unit/common/quota/test_account.py::test_names_that_are_encoded_do_not_make_a_ledger_longer_than_it_is_known_to_be",
        "integration/test_kube_real.py::test_objects_are_found_by_names_that_have_the_characters_of_selectors_and_urls",
    ),
    "Names of resources of a megabyte": (f"{COUNTED_PODS}::test_very_long_names_are_not_kept",),
    "A pod is deleted with a grace period of centuries": (
        f"{COUNTED_PODS}::test_a_grace_period_that_an_api_server_adds_wrongly_ends_nothing",
        f"{OBJECTS}::test_pods_with_grace_periods_of_years_leave_nothing_when_they_are_gone",
    ),
    "Another server serves pods with a time": (f"{COUNTED_PODS}::test_a_time_that_no_api_server_writes_ends_nothing",),
    "The agent's kubeconfig for a user cluster is stolen: read Secrets there": (
        f"{RIGHTS}::test_the_programs_call_what_they_may_and_may_what_they_call",
        f"{OBJECTS}::test_only_what_is_limited_is_watched_and_numbers_need_no_more_than_metadata",
    ),
    "... read Pods, with what stands in their environment": (
        f"{RIGHTS}::test_the_programs_call_what_they_may_and_may_what_they_call",
    ),
    "A Machine names a host of the tenant": (
        f"{SETTINGS}::test_an_endpoint_of_a_tenant_is_not_asked",
        f"{CREDENTIALS}::test_no_host_is_sent_what_was_not_paired_with_it",
    ),
    "The endpoint is a reference": (
        f"{SETTINGS}::test_a_reference_is_read_once_and_what_it_holds_later_does_not_matter",
    ),
    "A Machine on the seed names the platform's Secret": (
        f"{SETTINGS}::test_what_is_in_secrets_of_the_seed_is_neither_sent_nor_shown_because_a_machine_names_it",
    ),
    "A Machine names an AWS role": (
        f"{SETTINGS}::test_credentials_are_never_a_part_of_the_platform_s_and_a_part_of_the_tenant_s",
        "unit/seed/providers/test_aws.py::test_a_role_of_a_tenant_is_not_assumed_with_the_identity_of_this_program",
        f"{CREDENTIALS}::test_credentials_are_one_set_of_one_origin",
    ),
    "A tenant's own cloud says": (
        f"{SETTINGS}::test_an_endpoint_of_a_tenant_is_not_asked",
        "integration/installed/test_kubermatic.py"
        "::test_a_machine_s_size_is_asked_of_the_datacenter_of_its_cluster_alone",
    ),
    "A kubeconfig of the tenant names the platform's": (
        f"{SETTINGS}::test_of_a_kubeconfig_for_the_platform_s_server_nothing_is_used",
    ),
    "A stamp is copied": (f"{PLACES}::test_a_copied_stamp_of_another_place_is_not_trusted",),
    "A reference leads to another region": (
        f"{PLACES}::test_a_machine_counts_at_the_larger_size_of_both_places",
        "integration/installed/test_machine_sizes.py"
        "::test_a_cloud_that_tells_a_larger_size_than_a_stamp_is_told_and_counts",
    ),
    "A reference leads to a host of the tenant": (
        f"{PLACES}::test_a_stamped_machine_that_leads_to_a_tenant_s_endpoint_is_named",
    ),
    "a tenant lets lookups hang": (f"{CACHE}::test_hanging_lookups_of_one_user_cluster_refuse_no_other_s",),
    "a tenant asks about places": (
        f"{CATALOGUE}::test_what_one_user_cluster_asks_pushes_out_nothing_of_another",
        "integration/test_shared_sizes.py::test_what_is_shared_is_bounded",
    ),
    "a tenant makes a cloud fail": (
        f"{CACHE}::test_what_one_user_cluster_sends_closes_a_cloud_to_no_other",
        f"{CACHE}::test_a_lookup_that_goes_wrong_for_one_user_cluster_is_no_answer_for_another",
    ),
    "a tenant's account does not see": (
        f"{CATALOGUE}::test_what_one_user_cluster_s_account_does_not_see_another_s_may",
    ),
    "a tenant signs in": (f"{CACHE}::test_sessions_of_one_user_cluster_push_out_no_other_s",),
    "a Machine refers to many Secrets": (
        f"{SETTINGS}::test_one_tenant_s_references_push_out_nothing_of_another_s",
        f"{SETTINGS}::test_a_secret_that_is_too_large_is_not_kept",
    ),
    "a machine type that cannot be read": (
        "unit/seed/instance_types/test_unreadable_entries.py::test_only_the_machine_that_names_it_is_refused",
    ),
    "KubeVirt: a Machine names a small": (
        f"{KUBEVIRT}::test_the_type_of_the_namespace_counts_whatever_kind_or_revision_a_machine_names",
    ),
    "GPUs as": (
        f"{KUBEVIRT}::test_what_real_types_cost",
        "unit/seed/machines/test_cluster_api.py::test_a_kubevirt_machine_costs_what_its_guest_sees",
    ),
    "OpenNebula:": (
        "unit/seed/providers/test_in_spec.py::test_a_spec_that_does_not_tell_its_size_is_refused_by_the_name_of_the_field",
    ),
    "a Machine of a cloud that the platform does not use": (
        "unit/seed/sizing/test_sizer.py::test_a_cloud_is_off_unless_it_is_named",
        "unit/seed/sizing/test_sizer.py::test_without_the_flag_no_cloud_is_named",
    ),
    "a kubeconfig in a Machine or a Secret": (
        f"{KUBEVIRT}::test_a_kubeconfig_that_explodes_is_no_kubeconfig",
        f"{HOSTILE}::test_a_machine_that_explodes_when_it_is_read_is_refused_and_stops_nobody",
        "fuzz/test_objects.py::test_kubeconfigs",
    ),
    "a kubeconfig with an encrypted key": (f"{PEM}::test_an_encrypted_key_is_refused_before_it_is_read",),
    "... with an RSA key of 65,537 bits": (
        f"{PEM}::test_an_rsa_key_whose_signatures_take_seconds_is_refused",
        f"{PEM}::test_a_key_of_another_form_is_refused",
        f"{PEM}::test_very_many_certificates_are_refused",
    ),
    "... with a host that no name server answers for": (
        f"{THREADS}::test_hosts_of_tenants_that_no_name_server_answers_for_keep_no_other_lookup_from_its_answer",
        f"{THREADS}::test_a_cluster_whose_work_never_ends_has_one_thread_and_others_do_not_wait",
        f"{THREADS}::test_a_namespace_has_half_of_the_threads_however_many_clusters_it_has",
        f"{THREADS}::test_the_platforms_own_threads_are_not_taken",
        "unit/seed/cache/test_user_cluster_clients.py::test_one_whose_kubeconfig_takes_long_keeps_no_other_from_being_opened",
    ),
    "a Machine with a very large provider spec": (
        f"{FOOTPRINT}::test_a_spec_that_is_too_large_is_not_sized",
        f"{HOSTILE}::test_a_machine_that_explodes_when_it_is_read_is_refused_and_stops_nobody",
    ),
    "a Machine whose status": (
        f"{DEEP}::test_a_list_with_an_object_as_deep_as_api_servers_take_is_read",
        f"{DEEP}::test_a_deep_object_that_is_malformed_as_well_hides_no_other",
        f"{HOSTILE}::test_a_machine_that_is_nested_deep_freezes_no_count",
    ),
    "many Machines of a megabyte": (
        f"{API_CLIENT}::test_a_list_of_large_objects_comes_in_smaller_pages",
        f"{FOOTPRINT}::test_what_is_kept_of_a_machine_is_bounded",
    ),
    "thousands of Machines past the webhook": (
        "unit/seed/kinds/machines/test_totals_waiting.py"
        "::test_what_thousands_of_waiting_machines_cost_grows_with_their_number_alone",
        "unit/common/kube/controller/test_reflector.py"
        "::test_changes_of_a_list_are_told_with_turns_of_others_between_and_what_is_gone_last",
    ),
    "a review of an API server": (
        f"{TURNS}::test_a_review_of_many_names_is_refused_before_it_is_decoded",
        "unit/seed/kinds/machines/test_webhook.py::test_what_is_too_large_is_refused",
    ),
    "dry runs with another provider spec": (
        f"{FOOTPRINT}::test_what_is_kept_of_specs_is_bounded_whoever_writes_them",
        f"{TURNS}::test_a_user_s_name_is_kept_no_longer_than_a_line",
        f"{EXPLAIN}::test_one_cluster_s_many_decisions_do_not_push_out_another_s",
        f"{EXPLAIN}::test_dry_runs_push_out_nothing_but_dry_runs",
        f"{HOSTILE}::test_a_long_name_of_a_user_is_not_kept",
    ),
    "dry runs that ask what fits": (
        f"{MACHINES}::test_a_dry_run_that_asks_it_is_told_how_many_fit_and_takes_nothing",
        f"{MACHINES}::test_who_does_not_ask_by_a_dry_run_is_admitted_as_one",
        f"{IN_NAMESPACES}::test_who_asks_what_fits_is_told_by_each_quota_of_the_namespace",
    ),
    "names with control characters": (
        f"{EXPLAIN}::test_what_a_terminal_would_obey_is_shown_as_its_number",
        f"{EXPLAIN}::test_whose_name_has_a_line_end_writes_no_line_of_the_answer",
        "unit/cli/test_tables.py::test_nobody_writes_a_row_of_a_table_with_an_event",
    ),
    "an answer of a cloud with long names": (
        f"{OPENSTACK}::test_names_of_devices_are_read_in_linear_time",
        f"{OPENSTACK}::test_an_answer_that_is_too_large_is_not_read",
        f"{CATALOGUE}::test_looking_for_the_nearest_of_thousands_of_long_names_takes_milliseconds",
        f"{CATALOGUE}::test_names_that_are_too_long_are_not_kept",
    ),
    "a long list of machine types": (
        "unit/seed/providers/test_azure.py::test_a_long_list_is_read_in_pieces_between_which_others_have_their_turn",
        "unit/seed/providers/test_azure.py::test_a_list_of_nothing_but_values_is_refused_before_it_is_decoded",
    ),
    "thousands of new connections a second": (
        "unit/common/server/test_fair_queue.py::test_an_address_with_thousands_of_connections_delays_another_by_one",
        f"{SERVER}::test_a_storm_of_connections_begins_no_more_handshakes_than_the_loop_bears",
    ),
    "connections to the webhook": (
        f"{BOTH_SERVERS}::test_handshakes_that_never_end_are_counted_and_give_way",
        f"{BOTH_SERVERS}::test_a_first_request_must_come_soon",
        f"{SERVER}::test_who_has_not_proven_itself_costs_nobody_who_has",
        f"{BOTH_SERVERS}::test_too_many_connections_of_a_caller_cost_its_own_that_is_idle_for_longest",
        f"{SERVER}::test_a_caller_that_keeps_all_places_busy_keeps_no_other_out",
        f"{HOSTILE}::test_connections_that_show_nothing_push_out_no_api_server",
    ),
    "requests without a valid token": (
        f"{SERVER}::test_a_body_is_not_read_of_a_path_that_nobody_is_known_by",
        f"{HOSTILE}::test_connections_that_show_nothing_push_out_no_api_server",
    ),
    "one cluster that asks without a pause": (
        f"{TURNS}::test_who_asks_too_often_is_told_to_try_again",
        f"{TURNS}::test_many_requests_of_one_caller_do_not_stand_before_another_s",
        f"{TURNS}::test_requests_about_objects_in_namespaces_take_no_turns_of_machines",
        f"{TURNS}::test_large_requests_of_one_caller_are_read_one_by_one_with_turns_of_others_between",
        f"{BOTH_SERVERS}::test_one_caller_who_holds_much_costs_no_other",
    ),
    "one cluster asks without a pause, so that": (
        "unit/seed/registration/test_probe.py::test_a_refusal_for_asking_too_often_proves_as_much",
    ),
    "an API server of a tenant that never answers": (
        "unit/seed/cache/test_user_cluster_clients.py"
        "::test_a_tenant_whose_api_server_never_answers_keeps_nobody_from_another_s",
    ),
    "an error of an API server": (
        f"{DEEP}::test_an_error_is_bounded",
        f"{API_CLIENT}::test_a_status_becomes_an_error_with_reason_causes_and_retry",
    ),
    "Somebody reads names of other clusters in a 503": (
        f"{WAITS}::test_tenants_read_no_names_of_sources",
        f"{WAITS}::test_who_is_refused_meanwhile_reads_what_the_leader_says",
    ),
    "A Machine with many kinds of devices": (
        f"{FOOTPRINT}::test_a_machine_has_a_bounded_number_of_names_and_one_with_more_is_refused",
        f"{NAMES}::test_one_who_asks_for_many_kinds_of_devices_is_told_so_and_keeps_nobody_out",
        f"{NAMES}::test_machines_that_are_there_with_many_kinds_of_devices_are_counted_and_told_of",
    ),
    "Machines with other devices again and again": (
        f"{USAGE}::test_what_no_quota_limits_is_counted_by_a_few_names_and_all_when_it_is_limited",
        f"{USAGE}::test_a_report_takes_few_names_however_many_its_sources_have",
    ),
    "Creations without a pause in a project whose own quota is full": (
        "unit/seed/admission/test_admitter.py"
        "::test_a_quota_that_gives_a_machine_nothing_refuses_before_its_organizations_reserves_anything",
        "unit/seed/admission/test_admitter.py::test_while_a_quota_waits_for_the_master_nothing_is_kept_in_the_others",
        "unit/seed/admission/test_admitter.py"
        "::test_requests_at_once_around_a_projects_last_unit_reserve_no_more_of_its_organizations",
    ),
    "Thousands of creations": (
        "unit/seed/admission/test_admitter.py::test_a_source_that_has_its_share_is_told_to_try_again",
        "unit/common/quota/test_account.py::test_where_others_fill_their_shares_a_source_that_has_little_is_admitted",
        "unit/common/quota/test_shares.py"
        "::test_whatever_others_took_and_gave_back_each_of_few_sources_finds_its_least_share",
        f"{USAGE}::test_what_another_webhook_refuses_again_and_again_does_not_fill_the_quota",
    ),
    "... in a cluster that several projects share": (
        f"{USAGE}::test_a_tenant_whose_objects_do_not_appear_keeps_no_other_of_its_cluster_waiting",
        "unit/seed/ledger/test_writer.py::test_one_tenant_does_not_fill_the_line_for_others_of_its_source",
        "unit/common/quota/test_account.py::test_one_tenant_fills_most_of_its_sources_part_but_not_all_of_it",
        "unit/seed/kinds/namespaces/test_webhook.py"
        "::test_what_is_reserved_says_whose_it_is_where_a_quota_counts_several",
    ),
    "... in namespaces of several tenants": (
        "unit/common/quota/test_account.py::test_one_tenant_fills_most_of_its_sources_part_but_not_all_of_it",
        "unit/seed/kinds/namespaces/test_webhook.py"
        "::test_what_is_reserved_says_whose_it_is_where_a_quota_counts_several",
    ),
    "The API server of a user cluster answers slowly": (
        f"{USAGE}::test_a_source_that_answers_slowly_keeps_no_reservation_of_another",
    ),
    "A generation or a number of replicas": (
        "unit/seed/kinds/machines/test_webhook.py::test_a_generation_that_no_api_server_has_does_not_reach_the_ledger",
        "unit/common/kube/client/test_meta.py::test_a_number_that_no_api_server_has_is_not_read",
    ),
    "An API server asks its clients to wait": (
        f"{API_CLIENT}::test_a_status_becomes_an_error_with_reason_causes_and_retry",
    ),
    "A Machine names an owner": (
        "unit/seed/kinds/machines/test_rollouts.py::test_what_was_read_of_one_cluster_or_namespace_is_no_answer_in_another",
    ),
    "Refused Machines name thousands of owners": (
        "unit/seed/notifications/test_wake_queue.py"
        "::test_a_cluster_with_very_many_pushes_out_its_own_and_none_of_another",
    ),
    "impersonates the group": (
        "unit/seed/registration/test_configuration.py::test_nobody_passes_where_break_glass_is_off",
        "unit/seed/registration/test_configuration.py::test_break_glass_is_off_in_user_clusters_unless_it_is_switched_on",
    ),
    "deletes or changes the webhook configuration": (
        f"{CONFIGURATION}::test_it_is_back_soon_after_its_deletion",
        f"{CONFIGURATION}::test_what_a_tenant_changes_is_corrected_with_one_write",
        f"{QUOTAS}::test_what_comes_in_by_break_glass_is_counted_and_shown",
    ),
    "... in a loop": (
        f"{CONFIGURATION}::test_who_deletes_it_in_a_loop_finds_it_restored_each_time_with_one_write",
        f"{CONDITIONS}::test_what_is_wrong_now_comes_before_what_was_not_admitted",
    ),
    "creates so many or such large Machines": (
        "unit/seed/kinds/machines/test_source.py::test_machines_that_take_too_much_are_not_read_and_the_last_count_stays",
        f"{FOOTPRINT}::test_what_machines_of_one_user_cluster_take_is_bounded_whatever_it_is_made_of",
        "unit/common/kube/controller/test_reflector.py"
        "::test_what_takes_more_than_its_bound_is_not_followed_and_the_store_stays_as_it_was",
        f"{API_CLIENT}::test_a_list_of_more_than_its_bound_is_given_up_while_it_is_read",
    ),
    "copies the stamp": (f"{QUOTAS}::test_what_comes_in_by_break_glass_is_counted_and_shown",),
    "has another server serve": (
        f"{CONFIGURATION}::test_a_tenant_who_serves_the_machines_hides_none_of_them",
        "unit/seed/kinds/machines/test_machine_api.py::test_what_another_server_lists_or_tells_is_not_used",
        f"{CONDITIONS}::test_an_api_that_the_tenant_serves_is_not_enforced",
    ),
    "takes away the right to read": (
        "unit/seed/kinds/machines/test_machine_api.py::test_without_the_right_to_look_nothing_is_read",
    ),
    "the agent's token on a seed is stolen": (STOLEN,),
    "... write webhook configurations": (STOLEN,),
    "... write `seedquota-namespaces`": (STOLEN,),
    "... create a Secret": (STOLEN,),
    "... register a webhook": (),
    "a user of a seed who may write Secrets and UserClusters": (
        f"{NETWORKS}::test_this_machine_its_link_everybody_and_nobody_are_not",
        f"{NETWORKS}::test_this_machine_is_not_connected_to_however_a_kubeconfig_writes_it",
        f"{NETWORKS}::test_a_name_that_leads_elsewhere_when_it_is_asked_again_is_not_followed",
    ),
    "... has it connect to addresses of the platform's network": (
        f"{NETWORKS}::test_a_list_is_what_is_allowed_and_nothing_else",
        f"{NETWORKS}::test_nobody_learns_what_is_at_an_address",
    ),
    "pastes a manifest": (
        f"{MANIFESTS}::test_a_manifest_that_cannot_be_asked_about_says_why",
        "unit/seed/previews/test_needs.py::test_what_is_hostile_is_bounded",
        "unit/seed/previews/test_needs.py::test_types_are_listed_for_the_user_clusters_of_the_project_alone",
        "unit/seed/previews/test_needs.py::test_a_type_that_no_cloud_has_told_of_is_a_problem_and_not_nothing",
    ),
    "a seed reads the secrets in a manifest": (
        f"{MANIFESTS}::test_no_seed_is_sent_what_may_be_a_secret",
        f"{MANIFESTS}::test_what_a_hostile_seed_answers_is_not_read",
        f"{MANIFESTS}::test_seeds_that_say_the_same_are_one_answer_and_who_cannot_tell_is_left_out_where_others_can",
    ),
    "read `/decisions`": (
        f"{HEALTH}::test_a_page_is_for_this_host_and_what_a_proxy_passes_on_is_not_from_it",
        f"{HEALTH}::test_of_another_host_the_token_decides",
        f"{HEALTH}::test_a_question_may_be_longer_than_other_requests_and_has_a_right_of_its_own",
        f"{PAGES}::test_the_api_server_says_who_it_is_and_whether_the_path_may_be_read",
    ),
    "read the token of such a request": (f"{PAGES}::test_a_token_for_the_api_server_itself_is_not_accepted",),
    "flood the health port": (
        f"{HEALTH}::test_who_floods_metrics_keeps_no_probe_waiting_and_they_are_rendered_once_a_second",
        f"{HEALTH}::test_silent_connections_are_counted_end_soon_and_keep_nobody_out",
        "unit/common/server/test_exposition.py::test_all_who_ask_share_one_rendering_which_is_kept_for_a_moment",
    ),
    "flood `/decisions`": (
        f"{PAGES}::test_who_forges_tokens_delays_nobody_at_another_address_by_more_than_a_turn",
        f"{PAGES}::test_many_tokens_cost_the_api_server_few_reviews_and_this_program_little_memory",
        f"{PAGES}::test_an_answer_is_kept_for_seconds_only",
    ),
    "reads the token of a webhook": (
        "unit/seed/webhooks/test_router.py::test_a_token_opens_its_own_webhook_to_its_own_caller_alone",
        f"{ROTATION}::test_a_token_is_good_for_its_own_webhook_and_caller_and_only_while_its_key_is_accepted",
    ),
    "creates an object on the seed": (
        f"{ROTATION}::test_every_replica_can_read_the_next_key_before_it_is_used_and_the_former_is_accepted_for_a_bounded_time",
        f"{ROTATION}::test_a_key_that_was_removed_is_replaced_at_once_and_accepted_for_a_minute_at_most",
    ),
    "a tenant reads the names or the use": (
        f"{LOCAL}::test_a_tenant_sees_the_totals_what_is_used_here_and_nothing_of_others",
        "unit/seed/projections/test_local_quota.py::test_it_depends_on_nothing_of_others_but_the_totals",
    ),
    "a cluster admin of the user cluster changes or deletes one": (
        f"{LOCAL}::test_what_a_tenant_changes_or_deletes_is_restored_with_the_next_change",
        f"{COPIES}::test_what_somebody_changed_there_is_restored_in_time_and_its_age_stays_young",
        f"{COPIES}::test_a_kind_that_is_not_served_yet_is_no_failure_and_one_that_was_deleted_is_made_again",
    ),
    "a user with `view`": (f"{OWNER}::test_what_each_role_may_do",),
    "a user cluster answers slowly": (
        f"{COPIES}::test_a_user_cluster_that_hangs_or_fails_delays_no_other",
        f"{COPIES}::test_all_user_clusters_together_are_looked_at_so_often_in_a_second",
    ),
    "a tenant reads the names or the use of other namespaces": (
        f"{IN_EACH}::test_each_namespace_has_the_totals_and_its_own_use_and_nothing_of_others",
        f"{IN_INSTALLED_NAMESPACES}::test_use_follows_pods_and_labels_in_both_clusters",
    ),
    "a tenant changes what its namespace uses again and again": (
        f"{IN_EACH}::test_one_that_changes_all_the_time_does_not_keep_others_back",
        f"{COPIES}::test_however_often_it_changes_it_is_written_once_in_an_interval",
    ),
    "a namespace refuses the copy": (f"{IN_EACH}::test_a_namespace_that_refuses_keeps_no_other_from_being_written",),
    "a tenant's pod names an owner": (
        f"{NOTIFIER}::test_another_machine_set_of_that_name_is_not_taken_for_it",
        f"{NOTIFIER}::test_only_what_makes_pods_by_itself_is_woken_for_a_pod",
    ),
    "one namespace has thousands of refused owners": (
        "unit/seed/notifications/test_wake_queue.py"
        "::test_a_namespace_with_very_many_pushes_out_its_own_and_none_of_another",
    ),
    "... of a user cluster, whose kubeconfig may `patch` them": (
        f"{NOTIFIER}::test_without_the_right_to_patch_nobody_waits_for_ever",
    ),
    "the agent's token on a seed is stolen: change what": (
        f"{WRITES}::test_a_stolen_token_of_the_agent_changes_no_more_of_owners_than_the_annotation_that_wakes_them",
    ),
    "... change MachineSets of Cluster API": (
        f"{WRITES}::test_a_stolen_token_of_the_agent_changes_no_more_of_owners_than_the_annotation_that_wakes_them",
        f"{WRITES}::test_whatever_a_program_may_change_is_limited_by_a_policy_or_needs_none_for_a_reason",
        f"{WRITES}::test_the_policy_asks_about_each_change",
    ),
    "a user with `view` reads ledgers": (f"{CHARTS}::test_the_viewer_reads_what_commands_read_and_nothing_more",),
    "... reads the quotas of all projects": (),
    "an owner (`seedquota:project-owner`)": (
        f"{OWNER}::test_an_owner_may_write_the_quotas_of_these_names",
        f"{OWNER}::test_an_owner_may_write_no_other",
    ),
    "... with a ServiceAccount": (
        f"{OWNER}::test_an_owner_gives_no_further_right_to_others_or_himself",
        f"{OWNER}::test_who_was_given_more_is_not_held_to_the_names",
    ),
    "... of an agent that has another name": (f"{CHARTS}::test_the_policies_hold_for_the_agents_own_account",),
    "the master's token on a seed is stolen": (
        f"{MASTER}::test_seed_add_gives_the_master_what_it_needs_on_the_seed_and_nothing_more",
        f"{RIGHTS}::test_the_programs_call_what_they_may_and_may_what_they_call",
    ),
    "... list the UserClusters and Events there": (),
    "... use it for longer": (),
    "somebody gives `seedquota seed add`": (
        f"{MASTER}::test_seed_add_writes_nothing_where_the_kubeconfig_leads_to_the_wrong_cluster",
    ),
    "a tenant has the agents withdraw": (
        "integration/installed/test_uninstall.py"
        "::test_uninstall_removes_the_webhooks_of_one_seed_and_says_everywhere_that_nothing_is_enforced",
        "unit/seed/registration/test_withdrawal.py::test_what_was_asked_of_an_earlier_run_means_nothing",
    ),
    "calls without a token and certificate": (
        f"{HTTP_API}::test_who_has_no_valid_token_gets_nothing_but_the_document",
        f"{APP}::test_who_shows_no_token_is_refused_by_the_head_and_may_read_the_document",
    ),
    "allocates for a project of another organization": (
        f"{HTTP_API}::test_each_actor_may_do_what_its_role_says",
        f"{HTTP_API}::test_an_allocation_that_is_wrong_is_pointed_to",
    ),
    "lists allocations of projects of somebody else": (
        f"{HTTP_API}::test_allocations_are_listed_by_project_page_and_what_one_may_see",
    ),
    "lists the allocations of an organization with very many": (
        "unit/master/cache/test_allocations.py::test_a_page_looks_at_none_but_its_own",
    ),
    "the webhook for Allocations or for clusters is removed": (
        "integration/test_one_cluster.py::test_a_quota_is_not_in_force_where_the_webhook_for_allocations_is_not_asked",
        "integration/test_one_cluster.py"
        "::test_a_quota_of_clusters_is_not_in_force_where_a_webhook_for_clusters_does_not_answer",
    ),
    "the token of a chart's Job is stolen": (
        f"{RIGHTS}::test_the_programs_call_what_they_may_and_may_what_they_call",
        f"{CHARTS}::test_a_release_is_checked_after_it_was_installed_or_upgraded",
        "chart/test_installation.py::test_one_installation_makes_the_seeds_and_settings_of_the_values_and_they_stay",
    ),
    "`hostNetwork=true`: another process": (),
    "the agent's token is stolen: create Allocations": (
        "unit/seed/kinds/allocations/test_webhook.py"
        "::test_a_canary_is_refused_before_anything_is_asked_and_only_as_a_dry_run",
    ),
    "allocates while nothing admits Allocations": (f"{HTTP_API}::test_nothing_is_allocated_that_no_webhook_admits",),
    "sends an array of which a part fits": (f"{HTTP_API}::test_of_several_all_are_allocated_or_none",),
    "asks what would fit, to learn the amounts": (
        f"{HTTP_API}::test_who_asks_what_fits_must_see_every_quota_that_is_asked_about",
    ),
    "shows a client certificate of another CA": (
        f"{CERTIFICATES}::test_a_certificate_that_is_not_valid_ends_the_handshake",
        f"{CERTIFICATES}::test_a_certificate_that_expires_ends_on_a_connection_that_is_open",
        f"{CERTIFICATES}::test_a_renewed_ca_counts_at_once_and_the_one_before_until_it_is_taken_away",
    ),
    "shows a client certificate with `O=system:masters`": (
        f"{CERTIFICATES}::test_name_and_groups_are_those_that_the_api_server_reads",
    ),
    "a script in the page": (
        "unit/master/apiserver/test_page.py::test_nothing_runs_or_is_loaded_and_the_policy_says_so",
    ),
    "a page of another site": (f"{APP}::test_a_page_of_another_site_writes_nothing_by_what_a_browser_shows_by_itself",),
    "asks for an organization of somebody else": (
        f"{HTTP_API}::test_who_cannot_see_an_organization_does_not_learn_whether_it_exists",
    ),
    "sets limits with rights in a namespace": (f"{HTTP_API}::test_each_actor_may_do_what_its_role_says",),
    "makes a namespace `org-NAME`": (),
    "a name with `/`": (f"{APP}::test_what_a_path_has_that_does_not_exist_is_not_told",),
    "a large, deep or malformed body": (
        f"{HTTP_API}::test_a_hostile_body_is_refused_with_a_problem",
        f"{ROUTES}::test_any_body_is_read_or_refused_with_a_problem",
    ),
    "an object with a key twice": (f"{ROUTES}::test_a_key_that_is_there_twice_is_refused",),
    "learns what another user's browser": (
        f"{APP}::test_nothing_is_compressed_for_a_page_of_another_site_and_no_problem_is",
    ),
    "asks for compressed answers": (f"{APP}::test_one_answer_is_compressed_at_a_time_and_none_waits_for_that",),
    "asks for a decision or refusals of somebody else": (
        f"{DECISIONS}::test_of_a_quota_that_one_may_not_see_nothing_is_said",
        f"{DECISIONS}::test_who_may_see_no_part_of_it_sees_nothing",
        f"{DECISIONS}::test_what_a_seed_answers_is_read_within_bounds_or_not_at_all",
        f"{HTTP_API}::test_a_decision_is_read_from_the_agents_by_who_may_see_its_quotas",
    ),
    "follows changes": (
        f"{EVENTS}::test_who_may_not_see_something_may_not_follow_it",
        f"{EVENTS}::test_a_stream_ends_with_the_right_to_it_or_with_the_token",
        f"{EVENTS}::test_streams_are_bounded_by_user_and_for_all",
        f"{HTTP_API}::test_a_change_is_told_soon_to_who_may_see_it",
    ),
    "sends nothing, or a byte": (
        f"{BOTH_SERVERS}::test_a_first_request_must_come_soon",
        f"{BOTH_SERVERS}::test_a_request_that_comes_too_slowly_is_refused",
    ),
    "guesses tokens": (
        f"{AUTH}::test_a_token_that_is_nobodys_is_unauthenticated_and_pushes_out_no_other",
        f"{AUTH}::test_reviews_at_a_time_are_bounded_and_addresses_take_turns",
        f"{AUTH}::test_what_cannot_be_known_is_503_and_asked_again",
        f"{APP}::test_whose_a_token_is_is_asked_once",
        f"{FLOODS}::test_who_holds_connections_with_tokens_of_nobody_keeps_no_new_user_out",
        f"{FLOODS}::test_who_asks_with_tokens_of_nobody_keeps_no_new_user_waiting",
        f"{SERVER}::test_who_is_served_without_a_name_is_counted_by_address_and_proven_when_it_gives_one",
    ),
    "one user asks without a pause": (
        f"{LIMITS}::test_a_user_has_a_rate_that_others_do_not_take_from",
        f"{LIMITS}::test_what_is_worked_on_is_bounded_by_user_and_for_all",
    ),
    "users without any right ask": (
        f"{FLOODS}::test_users_without_rights_keep_no_reader_waiting",
        f"{AUTH}::test_one_user_cannot_take_all_reviews_of_rights",
    ),
    "whoever can reach the API": (
        f"{FLOODS}::test_who_is_nobody_or_is_refused_fills_no_log",
        f"{LOG_LIMIT}::test_all_callers_together_have_a_bound_and_each_place_its_own",
    ),
    "refusals, malformed objects or errors": (
        "unit/common/runtime/test_logs.py::test_what_a_caller_or_a_cluster_causes_is_limited_and_the_rest_is_not",
        f"{LOG_LIMIT}::test_who_causes_many_lines_loses_only_its_own",
        f"{LOG_LIMIT}::test_it_is_told_how_many_were_left_out",
    ),
    "a token or a right is taken away": (
        f"{HTTP_API}::test_a_right_that_is_taken_away_ends_within_seconds",
        f"{AUTH}::test_answers_end_after_seconds",
    ),
    "changes limits and denies it": (f"{HTTP_API}::test_every_write_is_in_the_audit_log_and_no_token_in_any",),
    "reads tokens in logs": (f"{HTTP_API}::test_every_write_is_in_the_audit_log_and_no_token_in_any",),
    "... or writes to its file system": (f"{CHARTS}::test_its_pods_are_allowed_where_pod_security_is_restricted",),
    "a package is replaced": (f"{SUPPLY}::test_the_locks_agree_are_hashed_and_name_no_registry",),
    "the tag of an action": (
        f"{WORKFLOWS}::test_actions_are_pinned_by_commit",
        f"{WORKFLOWS}::test_the_token_may_read_only_but_where_images_are_published",
        f"{WORKFLOWS}::test_nothing_is_published_that_was_not_tested_or_has_another_version_than_the_tag",
    ),
    "the tag of the base image": (
        f"{IMAGE}::test_the_containerfile_pins_by_arguments_and_ends_with_nothing_but_the_programs",
        f"{WORKFLOWS}::test_images_are_pinned_by_digest",
    ),
    "a tool for development": (
        f"{SUPPLY}::test_the_wheel_has_the_programs_and_neither_devcluster_nor_tests",
        f"{SUPPLY}::test_the_wheel_starts_with_nothing_but_what_the_lock_names",
    ),
    "somebody who can run a command": (f"{IMAGE}::test_the_programs_run_without_a_shell_as_a_user_who_owns_nothing",),
    "A review with a namespace, labels or a kind of the tenant's choice": (
        f"{IN_NAMESPACES}::test_nothing_is_admitted_while_the_labels_of_its_namespace_cannot_be_known",
        f"{IN_NAMESPACES}::test_a_namespace_that_was_labelled_a_moment_ago_is_read",
        f"{IN_NAMESPACES}::test_what_no_api_server_sends_is_not_answered",
    ),
    "Large objects, to take the memory of a replica": (
        f"{IN_NAMESPACES}::test_kinds_of_which_only_the_number_counts_may_be_large",
        f"{IN_NAMESPACES}::test_what_no_api_server_sends_is_not_answered",
        f"{IN_NAMESPACES}::test_objects_nested_without_end_are_not_answered",
    ),
    "A webhook that lets its own canary pass": (
        "unit/seed/registration/test_probe.py::test_only_our_own_refusal_proves_that_machines_are_checked",
        "unit/seed/kinds/namespaces/test_configuration.py::test_the_name_of_the_canary_tells_what_is_asked_and_nothing_else",
    ),
    "somebody with rights in one namespace allocates for another organization": (
        f"{ONE_CLUSTER}::test_an_allocation_is_in_the_namespace_of_its_organization",
        f"{ADMITS_ALLOCATIONS}::test_it_must_be_in_its_organizations_namespace_and_of_one_of_its_projects",
    ),
    "a namespace `org-acme` is there before the Organization": (
        f"{ORGANIZATION_NAMESPACES}::test_one_without_the_label_is_not_touched_and_looked_at_again",
    ),
    "an Allocation of a Project that was deleted": (
        f"{ADMITS_ALLOCATIONS}"
        "::test_where_a_project_was_made_again_by_another_organization_that_one_does_not_pay_for_more",
    ),
    "a typing error or an invented type": (
        f"{ADMITS_ALLOCATIONS}::test_a_type_that_is_not_counted_from_allocations_is_refused_and_those_that_are_are_listed",
    ),
    "the project, kind or id of an Allocation is changed": (f"{CRDS}::test_what_may_not_change_stays_as_it_is",),
    "the master's token is stolen: write other namespaces": (
        f"{ONE_CLUSTER}::test_the_master_may_write_the_namespaces_of_organizations_alone",
    ),
    "a receiver on the platform's network": (
        f"{DELIVERY}::test_no_connection_is_made_to_an_address_that_is_forbidden",
        f"{DELIVERY}::test_a_name_that_leads_elsewhere_when_it_is_connected_to_is_found_out",
        f"{RECEIVER}::test_only_public_addresses_are_connected_to",
    ),
    "a receiver that redirects": (f"{DELIVERY}::test_redirects_are_not_followed",),
    "messages that show which addresses and ports answer": (
        f"{DELIVERY}::test_a_hostile_receiver_takes_no_more_than_its_time",
        f"{DELIVERY}::test_nobody_listens",
    ),
    "a receiver that is slow": (
        f"{DELIVERY}::test_a_hostile_receiver_takes_no_more_than_its_time",
        f"{DELIVERY}::test_of_an_endless_answer_only_the_status_counts",
    ),
    "many objects, or objects that change all the time": (
        f"{NOTIFICATIONS}::test_a_tenant_who_changes_everything_all_the_time_is_sent_a_bounded_number_of_messages",
        f"{NOTIFICATIONS}::test_what_fails_is_tried_later_and_later_also_where_quotas_change_meanwhile",
        f"{NOTIFIED}::test_a_namespace_has_a_bounded_number_of_them",
    ),
    "the object names a Secret of another namespace": (
        f"{NOTIFICATIONS}::test_only_the_secret_of_its_own_namespace_is_read_and_only_for_what_can_be_sent",
    ),
    "reads the URL or the key in a status": (
        f"{DELIVERY}::test_no_log_has_the_path_which_is_a_secret",
        f"{NOTIFIED}::test_a_message_that_fails_is_tried_again_under_its_id_and_no_status_says_where_to",
    ),
    "is informed of quotas of another organization": (
        f"{NOTIFIED}::test_an_organization_is_told_once_and_signed_whichever_master_leads",
        f"{NOTIFIED_OF}::test_an_organization_is_told_of_its_own_quotas_and_those_of_its_projects_alone",
    ),
    "the master's token is stolen: read Secrets of organizations": (
        f"{NOTIFIED}::test_an_organization_is_told_once_and_signed_whichever_master_leads",
    ),
    "a name or message that mentions everybody": (
        f"{NOTIFIED_OF}::test_no_text_mentions_a_channel_of_slack_or_makes_a_link",
    ),
    "a message is forged": (f"{DELIVERY}::test_a_message_is_posted_and_can_be_verified",),
    "a list of hundreds of thousands of small objects": (
        f"{REFLECTOR}::test_a_long_list_is_taken_up_in_pieces_and_seen_at_once",
        "unit/common/kube/controller/test_dynamic_informers.py::test_very_many_objects_of_a_kind_that_is_gone_are_told_in_pieces",
        "unit/seed/kinds/namespaces/test_garbage_collection.py::test_objects_are_nothing_for_the_garbage_collector",
    ),
    "an API group with hundreds of versions": (f"{DISCOVERY}::test_no_more_is_asked_for_than_a_group_has",),
    "a seed says that it returned more than it was granted": (
        f"{ESCROW}::test_a_seed_has_returned_no_more_than_it_was_granted",
        f"{DECIDED}::test_what_a_seed_says_that_it_returned_beyond_its_grants_is_granted_to_nobody",
    ),
    "a seed reports what no ledger or status of the master can have": (
        f"{BOUNDED}::test_what_a_seed_shows_is_no_larger_than_its_schema_says",
        f"{REMOTE}::test_a_report_that_no_ledger_takes_leaves_the_one_before",
        f"{ESCROW}::test_a_report_with_more_names_than_a_ledger_takes_is_not_taken_up",
    ),
    "a seed shows millions of copies": (f"{REMOTE}::test_a_seed_takes_no_more_memory_than_its_bound",),
    "a seed shows very many copies": (
        f"{REPLICATOR}::test_a_seed_with_very_many_copies_that_the_master_has_not_is_cleared_bit_by_bit",
    ),
    "an agent answers with a token or a name": (
        f"{AGENTS}::test_a_seed_with_a_token_or_a_name_that_no_request_has_is_not_asked",
    ),
    "an agent tells refusals without end": (
        f"{REFUSALS}::test_a_seed_whose_agents_begin_again_and_again_fills_no_memory",
        f"{REFUSALS}::test_replicas_are_added_up_and_each_counts_with_what_it_told_last",
        f"{REFUSALS}::test_a_part_with_more_than_is_kept_is_not_known",
    ),
    "an agent tells refusals that were none": (),
    "a seed lists millions of user clusters": (f"{LISTED_CLUSTERS}::test_what_one_seed_lists_has_a_bound",),
    "a seed shows grants that it never got": (),
    "a seed reports all of a limit as used": (),
    "nobody knows what is in the image": (
        f"{IMAGE}::test_the_bill_of_materials_names_what_is_there_and_is_the_same_each_time",
    ),
}


@cache
def rows() -> dict[str, str]:
    """The attacks of the page, and what happens."""
    attacks = PAGE.read_text().partition("## Attacks")[2]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", attacks, re.MULTILINE)
    return {attack: happens for attack, happens in found if attack != "attack"}


@pytest.mark.parametrize("attack", rows())
def test_each_attack_has_a_test_that_proves_what_is_said_of_it(attack: str) -> None:
    named = [begin for begin in PROVEN if attack.startswith(begin)]
    assert named, "a row of docs/reference/security.md without a test"
    longest = max(named, key=len)
    assert PROVEN[longest] or any(words in rows()[attack] for words in NOT_PROVEN)


def test_each_that_is_listed_here_is_a_row() -> None:
    assert [begin for begin in PROVEN if not any(attack.startswith(begin) for attack in rows())] == []


@cache
def functions_of(path: str) -> list[str]:
    return re.findall(r"^(?:async )?def (\w+)", (TESTS / path).read_text(), re.MULTILINE)


@pytest.mark.parametrize("test", sorted({test for tests in PROVEN.values() for test in tests}))
def test_each_test_that_is_named_exists(test: str) -> None:
    path, _, name = test.partition("::")
    assert name in functions_of(path)
