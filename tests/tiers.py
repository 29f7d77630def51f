"""The two tiers of the suite: `make test` between two thoughts, and `python3 run.py test` before a change is handed in.

`make test` leaves out what is slow, but for a story of each store, runtime and way to call. No test marks itself: both
lists are here.
"""

from functools import cache
from typing import Final

SLOW: Final = (
    "tests/end_to_end/faults/test_stalls.py",
    "tests/queue_core/stores/test_store_model.py",
    "tests/docs/test_pages.py",
    "tests/end_to_end/faults/test_http_history.py",
    "tests/orchestrator/cli/test_doctor_table.py",
    "tests/kubernetes/test_stories.py",
    "tests/kubernetes/contract",
    "tests/kubernetes/test_tls.py",
    "tests/celery",
    "tests/end_to_end/docker",
    "tests/end_to_end/google/test_appengine_go.py",
    "tests/end_to_end/packaging",
    "tests/end_to_end/fleet",
    "tests/end_to_end/faults/test_bad_input.py",
    "tests/end_to_end/faults/test_closed_streams.py",
    "tests/end_to_end/faults/test_faults.py",
    "tests/end_to_end/faults/test_fork_starts.py",
    "tests/end_to_end/faults/test_full_disk_of_a_supervisor.py",
    "tests/end_to_end/faults/test_fuzz.py",
    "tests/end_to_end/faults/test_out_of_descriptors.py",
    "tests/end_to_end/faults/test_poison.py",
    "tests/end_to_end/faults/test_schedule_faults.py",
    "tests/end_to_end/faults/test_skewed_hosts.py",
    "tests/end_to_end/faults/test_soak.py",
    "tests/end_to_end/faults/test_stepped_engine.py",
    "tests/end_to_end/faults/test_stopped_servers.py",
    "tests/end_to_end/faults/test_store_faults.py",
    "tests/end_to_end/faults/test_store_races.py",
    "tests/end_to_end/faults/test_store_returns.py",
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_demo_screen.py",
    "tests/end_to_end/test_first_hour.py",
    "tests/end_to_end/test_late_answers.py",
    "tests/end_to_end/test_moving.py",
    "tests/end_to_end/test_native_api_schemathesis.py",
    "tests/end_to_end/test_private_files.py",
    "tests/end_to_end/test_stranger.py",
    "tests/end_to_end/test_tutorial.py",
    "tests/end_to_end/test_up_terminal.py",
    "tests/end_to_end/test_worker_over_http.py",
    "tests/end_to_end/test_worker_processes.py",
    "tests/end_to_end/test_worker_stories.py",
    "tests/end_to_end/google/test_appengine_java.py",
    "tests/end_to_end/google/test_appengine_stories.py",
    "tests/end_to_end/celery_pools",
    "tests/examples",
    "tests/queue_core/celery/test_odd_exceptions.py",
    "tests/queue_core/celery/test_celery_workers.py",
    "tests/queue_core/celery/test_published_once.py",
    "tests/queue_core/celery/test_bridge.py",
    "tests/queue_core/celery/test_control_across_servers.py",
    "tests/queue_core/celery/test_url_alone.py",
    "tests/queue_core/celery/test_acks_when_done.py",
    "tests/orchestrator/sources/celery/test_brokers.py",
    "tests/orchestrator/runtimes/test_templates.py",
    "tests/orchestrator/runtimes/test_template_process.py",
    "tests/orchestrator/runtimes/test_forked_memory.py",
    "tests/orchestrator/runtimes/docker/test_engine_trouble.py",
    "tests/orchestrator/runtimes/docker/test_runtime.py",
    "tests/orchestrator/runtimes/docker/test_orphans.py",
    "tests/orchestrator/runtimes/docker/test_slow_engine.py",
    "tests/orchestrator/runtimes/swarm/test_runtime.py",
    "tests/orchestrator/runtimes/swarm/test_trouble.py",
    "tests/orchestrator/runtimes/swarm/test_frozen_tasks.py",
    "tests/docs/test_site.py",
    "tests/queue_core/stores/postgres/test_floors_survive.py",
    "tests/queue_core/stores/postgres/test_floors_together.py",
    "tests/queue_core/stores/postgres/test_outcome.py",
    "tests/queue_core/stores/postgres/test_snapshot_holders.py",
    "tests/queue_core/stores/postgres/test_lanes_together.py",
    "tests/queue_core/stores/postgres/test_bench_holders.py",
    "tests/queue_core/stores/postgres/test_link_servers.py",
    "tests/queue_core/stores/postgres/test_upkeep.py",
    "tests/queue_core/cli/test_cut_output.py",
    "tests/queue_core/cli/test_token_addresses.py",
    "tests/queue_core/client/http/test_silent_servers.py",
    "tests/queue_core/client/http/test_failover.py",
    "tests/queue_core/postgres_signals/test_postgres_signals_loss.py",
    "tests/queue_core/server/test_silent_connections.py",
    "tests/queue_core/server/test_stopped_while_the_store_is_away.py",
    "tests/queue_core/server/test_servers_over_one_store.py",
    "tests/queue_core/server/test_erasures.py",
    "tests/queue_core/server/test_large_payloads.py",
    "tests/orchestrator/cli/test_up.py",
    "tests/orchestrator/cli/test_guard_rails.py::test_no_text_names_a_path_that_an_installed_package_lacks",
    "tests/orchestrator/cli/test_why_held.py",
    "tests/orchestrator/supervisor/test_many_pools.py",
    "tests/orchestrator/supervisor/test_supervisor.py",
    "tests/orchestrator/scaling/test_policy_properties.py",
    "tests/orchestrator/simulation/test_run.py",
    "tests/orchestrator/fleet/test_quarantine.py",
    "tests/orchestrator/base/test_values.py",
    "tests/console/test_story.py",
    "tests/console/test_what_if.py",
    "tests/console/test_standalone.py",
    "tests/console/test_tls_and_proxy.py",
    "tests/console/test_pages.py",
    "tests/console/following",
    "tests/queue_core/test_new_rare_field.py",
    "tests/orchestrator/test_deploy_commands.py",
    "tests/orchestrator/cli/test_by_url.py",
    "tests/queue_core/google/queue_files/test_files_beside_google.py",
    "tests/queue_core/worker/template/test_hazards.py",
    "tests/queue_core/server/test_numbers.py",
    "tests/queue_core/server/test_reused_keys.py",
    "tests/queue_core/stores/postgres/test_plans.py",
    "tests/queue_core/stores/postgres/test_floors.py",
    "tests/queue_core/transfer/test_queues.py",
    "tests/queue_core/transfer/test_imports.py",
    "tests/queue_core/test_forks.py",
    "tests/end_to_end/faults/test_lost_answers.py",
    "tests/docs/test_rules.py",
)
"""What takes more than a second: folders, files whose tests mostly do, and single tests of other files.

And files of many short tests that take more than five seconds together, where others say the same of a part.

A whole run begins with them, in this order: a long one at the end would keep one process busy and the others idle.
"""

STORIES: Final[dict[str, str]] = {
    "memory": "tests/end_to_end/google/test_taskqueue_client.py"
    "::test_a_task_goes_through_all_methods_on_every_store[memory]",
    "sqlite": "tests/end_to_end/faults/test_store_faults.py"
    "::test_nothing_is_lost_or_doubled_whatever_is_killed_or_cut[sqlite]",
    "postgresql": "tests/end_to_end/faults/test_store_faults.py"
    "::test_nothing_is_lost_or_doubled_whatever_is_killed_or_cut[postgresql]",
    "redis": "tests/end_to_end/faults/test_store_faults.py"
    "::test_nothing_is_lost_or_doubled_whatever_is_killed_or_cut[redis]",
    "process": "tests/end_to_end/fleet/test_supervisor_stories.py"
    "::test_work_is_done_by_workers_that_come_and_a_stop_ends_them_all",
    "forked": "tests/end_to_end/fleet/test_forked_workers.py"
    "::test_forked_workers_crash_are_adopted_take_new_code_and_leave_nothing",
    "docker": "tests/end_to_end/docker/test_stories.py"
    "::test_a_pool_of_containers_grows_from_none_survives_a_kill_finishes_and_shrinks_to_none",
    "swarm": "tests/orchestrator/runtimes/swarm/test_runtime.py"
    "::test_workers_left_running_are_adopted_as_they_are_and_told_of_when_they_end",
    "kubernetes": "tests/kubernetes/test_stories.py"
    "::test_a_fleet_grows_from_none_does_its_work_and_shrinks_to_none_and_nobody_is_cut",
    "external": "tests/end_to_end/fleet/test_external_story.py"
    "::test_whoever_starts_the_workers_is_told_how_many_and_they_are_seen",
    "App Engine": "tests/end_to_end/google/test_appengine_stories.py"
    "::test_a_script_runs_the_documentations_snippets_and_keeps_its_exit_code",
    "Celery": "tests/end_to_end/celery_pools/test_celery_pools.py"
    "::test_tasks_of_a_worker_that_is_killed_run_again_and_its_death_is_told",
    "Cloud Tasks": "tests/end_to_end/google/cloudtasks/test_tasks.py"
    "::test_a_task_goes_from_create_by_lease_and_renewal_to_acknowledgement",
    "Task Queue REST API": "tests/end_to_end/google/test_taskqueue_client.py"
    "::test_a_task_is_inserted_leased_renewed_and_deleted",
    "HTTP": "tests/end_to_end/test_worker_over_http.py::test_a_running_task_survives_the_death_of_the_server",
    "library": "tests/end_to_end/test_worker_stories.py::test_sigterm_lets_the_running_task_finish_and_leaves_the_rest",
    "asyncio": "tests/queue_core/client/asynchronous/test_async_client.py",
    "commands": "tests/queue_core/cli/test_task_story.py",
    "console": "tests/console/test_story.py"
    "::test_an_error_is_seen_mended_and_redriven_and_a_death_is_one_click_from_its_task",
}
"""The test, or the file, that `make test` runs of each store, runtime and way to call, slow or not."""


TOGETHER: Final = {
    "docker": (
        "tests/end_to_end/docker",
        "tests/end_to_end/celery_pools/test_celery_containers.py",
        "tests/orchestrator/cli/test_docker_doctor.py",
        "tests/orchestrator/cli/test_doctor_table.py",
        "tests/orchestrator/runtimes/contract",
        "tests/orchestrator/runtimes/docker",
    ),
    "kubernetes": ("tests/kubernetes",),
    "swarm": ("tests/orchestrator/runtimes/swarm",),
}
"""Files that one process runs: an engine with an image is ten seconds' work, and each process has its own."""


def is_slow(test: str) -> bool:
    """Return whether `make test` leaves a test out, by its id: `tests/x/test_y.py::test_z[case]`."""
    return _is_within(test, SLOW) and not _is_within(test, tuple(STORIES.values()))


@cache
def order(file: str) -> int:
    """Return the place of a file in a whole run; files that are not slow come last, as they were collected."""
    files = [place.partition("::")[0] for place in SLOW]
    return next((number for number, place in enumerate(files) if _is_within(file, (place,))), len(SLOW))


def unit(test: str) -> str:
    """Return what a process takes at a time: the file of a test, or the name of several that it runs together."""
    file = test.partition("::")[0]
    return next((name for name, places in TOGETHER.items() if _is_within(file, places)), file)


def _is_within(test: str, places: tuple[str, ...]) -> bool:
    return test.startswith(_beginnings(places)) or test in places


@cache
def _beginnings(places: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{place}{end}" for place in places for end in ("/", "::", "["))
