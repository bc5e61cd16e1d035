"""Which rules the design has, how each is taken out, and which tests must notice. `rules.py` does it.

A text is replaced in a file under `src/legato`; it is there exactly once. Where several guards hold a rule, some rows
take them out one by one and one takes out all. In a test's id `[*` stands for both databases.
"""

from typing import NamedTuple


class Change(NamedTuple):
    """A text in a file under `src/legato`, and what takes its place."""

    file: str
    old: str
    new: str


class Removal(NamedTuple):
    """A rule, what of it is taken out and how, and the tests that must go red."""

    rule: str
    what: str
    changes: list[Change]
    tests: list[str]

    @property
    def test_ids(self) -> list[str]:
        """The ids as pytest knows them."""
        databases = {test: ("sqlite", "postgres") if "[*" in test else ("",) for test in self.tests}
        return [f"tests/{test.replace('[*', '[' + name)}" for test, names in databases.items() for name in names]


NAME = "a name means one conversation, within one owner, for ever"
ID = "an id ever given out always resolves, to the same conversation"
ONCE = "an inbound event is admitted once"
ONE = "one running turn per conversation, across processes and machines"
FENCE = "a writer that lost its lease cannot write"
SEQ = "seq has no gap and no duplicate"
FORK = "previous_response_id: continue or fork is decided once"
UPKEEP = "maintenance is invisible to clients"
DURABLE = "acknowledged means durable"
MEMORY = "never silently in memory"
KEPT = "what was said is never lost"
FAILED = "a failed turn keeps what was said"
OWED = "an answer is owed exactly when the turn is done"
LEAVE = "a disconnect cancels nothing"
CACHE = "caches cannot be stale"
PREFIX = "the prompt prefix is byte-stable over restarts"
OWNER = "nobody reads another's conversation"
SHAPE = "the provider always gets a well-formed request"
WINDOW = "transcript and context are pure functions of the list (DESIGN §1)"
TURNS = "turns go through their states in order (DESIGN §10)"

RULES = (
    *(NAME, ID, ONCE, ONE, FENCE, SEQ, FORK, UPKEEP, DURABLE, MEMORY, KEPT, FAILED, OWED, LEAVE, CACHE, PREFIX),
    *(OWNER, SHAPE, WINDOW, TURNS),
)

CORE = "store/migrations/0001_core.sql"
GUARDS_SQLITE = "store/migrations/0002_guards.sqlite.sql"
GUARDS_POSTGRES = "store/migrations/0002_guards.postgres.sql"
TURNS_SQL, LOG_SQL, NAMES_SQL = "store/sql/turns.sql", "store/sql/log.sql", "store/sql/directory.sql"
OUTBOX_PY = "store/outbox.py"
OUTBOX_SQL = "store/sql/outbox.sql"
TURNS_PY, ADMISSION_PY = "store/turns.py", "store/admission.py"
NAMES_PY, SQLITE_PY = "store/directory.py", "store/sqlite.py"

NO_ALIAS_KEY = Change(CORE, "primary key (principal, scheme, value)", "check (value is not null)")
NO_DEDUP_INDEX = Change(CORE, "create unique index turns_dedup", "create index turns_dedup")
NO_DEDUP_LOOKUP = Change(
    "store/admission.py", "seen = await _same_submission(tx, submission)", "seen: Turn | None = None"
)
NO_RUNNING_INDEX = [
    Change(f"store/migrations/0009_lean.{dialect}.sql", "create unique index turns_open", "create index turns_open")
    for dialect in ("sqlite", "postgres")
]
NO_LIVING_OWNER = Change(
    TURNS_SQL,
    "select 1 from nodes where nodes.id = turns.owner and (nodes.lease_until > {now} or nodes.id = :node)))",
    "select 1 from nodes where nodes.id = :node and nodes.id <> nodes.id))",
)
NO_ENTRY_KEY = Change(CORE, "primary key (conversation_id, seq)", "check (seq is not null)")
NO_ADVANCE = Change(
    LOG_SQL,
    "update conversations set head_seq = head_seq + :count, updated_at = {now}\n",
    "update conversations set head_seq = head_seq + 0 * :count, updated_at = {now}\n",
)

REMOVALS = [
    Removal(
        NAME,
        "the primary key of aliases",
        [NO_ALIAS_KEY],
        [
            "store/test_directory.py::test_the_schema_refuses_a_second_meaning_of_a_name[*]",
            "store/test_races.py::test_twenty_first_contacts_under_one_name_make_one_conversation[postgres-slug]",
            "store/test_races.py::test_of_two_that_bind_one_name_the_second_is_refused[postgres]",
        ],
    ),
    Removal(
        NAME,
        "an address belongs to one principal of the installation (unique index)",
        [Change(CORE, "create unique index aliases_address", "create index aliases_address")],
        ["store/test_directory.py::test_the_schema_refuses_an_address_of_two_principals[*]"],
    ),
    Removal(
        NAME,
        "whoever loses the race for a name looks again",
        [Change("store/postgres.py", "    asyncpg.UniqueViolationError,  # someone", "    # someone")],
        ["store/test_races.py::test_twenty_first_contacts_under_one_name_make_one_conversation[postgres-slug]"],
    ),
    Removal(
        NAME,
        "a name belongs to its principal when it is looked up",
        [
            Change(
                NAMES_SQL,
                "from aliases where principal = :principal and scheme = :scheme and value = :value)\n"
                "and principal = :principal and deleted_at is null;",
                "from aliases where scheme = :scheme and value = :value order by principal limit 1)\n"
                "and (principal = :principal or true) and deleted_at is null;",
            )
        ],
        ["store/test_directory.py::test_anothers_conversation_is_as_unknown_as_one_that_never_was[*]"],
    ),
    Removal(
        ID,
        "a name is found before anything is made",
        [
            Change(
                NAMES_PY,
                "    if conversation is not None:\n        return conversation\n    if isinstance(handle, ById):",
                "    if isinstance(handle, ById):",
            )
        ],
        ["store/test_directory.py::test_every_id_and_name_given_out_still_resolves_to_the_same_conversation[*]"],
    ),
    Removal(
        ID,
        "a name in use is re-pointed only on purpose (the question, and the statement that cannot)",
        [
            Change(NAMES_PY, "if present is not None and not move:", "if present is None and move is None:"),
            Change(NAMES_PY, '"move_alias" if move else "add_alias"', '"move_alias"'),
        ],
        ["store/test_directory.py::test_a_name_in_use_is_not_taken_by_accident[*]"],
    ),
    Removal(
        ONCE,
        "the unique index of dedup keys",
        [NO_DEDUP_INDEX],
        [
            "store/test_admission.py::test_the_schema_refuses_a_second_turn_under_a_dedup_key[*]",
            "store/test_races.py::test_twenty_submissions_under_one_dedup_key_are_one_turn[postgres-no name]",
            "store/test_races.py::test_twenty_submissions_under_one_dedup_key_are_one_turn[postgres-one name]",
        ],
    ),
    Removal(
        ONCE,
        "looking for the dedup key",
        [NO_DEDUP_LOOKUP],
        ["store/test_admission.py::test_the_same_dedup_key_is_the_same_turn[*]"],
    ),
    Removal(
        ONCE,
        "index and lookup together",
        [NO_DEDUP_INDEX, NO_DEDUP_LOOKUP],
        [
            "store/test_admission.py::test_a_repeated_submission_without_a_conversation_makes_no_second_one[*]",
            "engine/test_busy.py::test_a_submission_sent_again_is_the_same_turn[*]",
        ],
    ),
    Removal(
        ONCE,
        "another request under the same key is refused",
        [Change(ADMISSION_PY, "if turn.request_hash != request_hash:", "if turn.request_hash == ():")],
        ["store/test_admission.py::test_the_same_dedup_key_with_another_request_is_refused[*]"],
    ),
    Removal(
        ONCE,
        "what a request makes without a turn, and its key, are one transaction",
        [Change("store/requests.py", "    if made := await _made", "    if made := None and await _made")],
        ["store/test_requests.py::test_a_request_is_carried_out_once_per_key_also_after_a_restart[*]"],
    ),
    Removal(
        ONCE,
        "of requests that race under one key the schema lets one through",
        [
            Change(
                "store/migrations/0005_remove_and_requests.sql",
                "    primary key (principal, dedup_key)\n",
                "    check (principal <> '')\n",
            )
        ],
        ["store/test_requests.py::test_eight_requests_under_one_key_make_one_conversation[postgres]"],
    ),
    Removal(
        ONCE,
        "a dedup key belongs to its principal",
        [
            Change(
                TURNS_SQL,
                "where principal = :principal and dedup_key = :dedup_key",
                "where (principal = :principal or true) and dedup_key = :dedup_key",
            )
        ],
        ["store/test_admission.py::test_another_principals_dedup_key_is_another_key[*]"],
    ),
    Removal(
        ONE,
        "the partial unique index",
        NO_RUNNING_INDEX,
        ["store/test_leases.py::test_the_schema_refuses_a_second_running_turn[*]"],
    ),
    Removal(
        ONE,
        "a turn of a living node is not taken",
        [NO_LIVING_OWNER],
        [
            "store/test_leases.py::test_a_turn_is_taken_over_only_after_its_nodes_lease_ran_out[*]",
            "store/test_leases.py::test_a_renewed_lease_keeps_its_turns[*]",
        ],
    ),
    Removal(
        ONE,
        "a lease is renewed whatever else of its node waits",
        [Change("engine/worker.py", "self._db.urgent(nodes.renew", "self._db.write(nodes.renew")],
        ["engine/test_lifecycle.py::test_a_conversation_that_is_locked_for_longer_than_a_lease_takes_no_turn_away"],
    ),
    Removal(
        ONE,
        "the index, and that the running turn comes first and its living node is asked",
        [
            *NO_RUNNING_INDEX,
            NO_LIVING_OWNER,
            Change(
                TURNS_SQL,
                "order by (q.status = 'running') desc,",
                "order by (q.status = 'queued') desc,",
            ),
        ],
        [
            "store/test_leases.py::test_while_a_turn_runs_nothing_else_of_its_conversation_is_claimed[*-another node]",
            "store/test_races.py::test_of_eight_claimers_one_gets_the_turn[postgres]",
        ],
    ),
    Removal(
        ONE,
        "a node takes back only what is its own",
        [Change(TURNS_SQL, "or (id = :lost and owner = :node) or", "or id = :lost or")],
        ["store/test_leases.py::test_a_node_takes_back_nothing_that_another_living_node_runs[*]"],
    ),
    Removal(
        FENCE,
        "the fence in every append",
        [
            Change(
                LOG_SQL,
                "set head_seq = head_seq + :count, updated_at = {now}\nwhere id = :id and fence = :fence",
                "set head_seq = head_seq + :count, updated_at = {now}\nwhere id = :id and cast(:fence as bigint) >= 0",
            )
        ],
        [
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-taken_over]",
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-released]",
            "store/test_races.py::test_an_append_that_meets_a_takeover_is_refused[postgres]",
        ],
    ),
    Removal(
        FENCE,
        "whoever lost the lease does not go on with a log that others wrote",
        [Change("store/log.py", "row[0] != fence:\n        raise LeaseLost()", "row[0] != fence:\n        return")],
        [
            "engine/test_pasts.py::test_a_turn_that_comes_too_late_spoils_nothing[*]",
            "engine/test_lifecycle.py::test_a_node_that_overslept_asks_nobody_with_a_log_that_went_on[before it began]",
            "engine/test_lifecycle.py::test_a_node_that_overslept_asks_nobody_with_a_log_that_went_on"
            "[after it was taken over]",
        ],
    ),
    Removal(
        FENCE,
        "the fence in the last append",
        [
            Change(
                LOG_SQL,
                "fence = fence + 1, updated_at = {now}\nwhere id = :id and fence = :fence",
                "fence = fence + 1, updated_at = {now}\nwhere id = :id and cast(:fence as bigint) >= 0",
            )
        ],
        [
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-taken_over]",
            "store/test_races.py::test_an_end_that_meets_a_takeover_is_refused[postgres]",
        ],
    ),
    Removal(
        FENCE,
        "the fence of events",
        [
            Change(
                TURNS_SQL,
                "where id = :conversation and fence = :fence {for_share}",
                "where id = :conversation and cast(:fence as bigint) >= 0 {for_share}",
            )
        ],
        [
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-taken_over]",
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-ended]",
            "store/test_races.py::test_events_that_meet_a_takeover_are_refused[postgres]",
        ],
    ),
    Removal(
        FENCE,
        "the fence of events of many turns",
        [
            Change(
                TURNS_SQL,
                "r\ncross join conversations c on c.id = r.value ->> 4 and c.fence = r.value ->> 5",
                "r\ncross join conversations c on c.id = r.value ->> 4",
            ),
        ],
        ["engine/test_journal.py::test_one_turn_that_lost_its_lease_harms_no_other[sqlite]"],
    ),
    Removal(
        FENCE,
        "events hold the row that proves their lease until they are committed",
        [Change(TURNS_SQL, "and fence = :fence {for_share}", "and fence = :fence")],
        ["store/test_races.py::test_events_under_way_are_counted_by_the_heir[postgres]"],
    ),
    Removal(
        FENCE,
        "a new holder raises the fence",
        [
            Change(
                LOG_SQL,
                "fence = fence + 1, updated_at = {now}\nwhere id = :id returning head_seq, fence",
                "updated_at = {now}\nwhere id = :id returning head_seq, fence",
            )
        ],
        [
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-taken_over]",
            "store/test_leases.py::test_every_change_of_holder_raises_the_fence[*]",
        ],
    ),
    Removal(
        FENCE,
        "a turn that starts at once raises the fence",
        [Change(ADMISSION_PY, "place.now, place.conversation.fence + 1", "place.now, place.conversation.fence")],
        ["store/test_leases.py::test_every_change_of_holder_raises_the_fence[*]"],
    ),
    Removal(
        FENCE,
        "whoever ends or hands back a turn raises the fence",
        [
            Change(
                LOG_SQL,
                "fence = fence + 1, updated_at = {now}\nwhere id = :id and fence = :fence",
                "updated_at = {now}\nwhere id = :id and fence = :fence",
            )
        ],
        [
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-ended]",
            "store/test_leases.py::test_whoever_lost_the_lease_writes_nothing[*-released]",
        ],
    ),
    Removal(
        SEQ,
        "an entry belongs to a turn, which is kept for it (the triggers)",
        [
            Change(
                "store/migrations/0009_lean.sqlite.sql",
                "when not exists (select 1 from turns",
                "when (select false from turns",
            ),
            Change("store/migrations/0009_lean.sqlite.sql", "and turn_id = old.id)", "and turn_id = '')"),
        ],
        ["store/test_migrations.py::test_an_entry_belongs_to_a_turn_which_is_kept_for_it[sqlite]"],
    ),
    Removal(
        SEQ,
        "the head advances in the statement that gives the positions",
        [NO_ADVANCE],
        ["store/test_log.py::test_entries_are_numbered_without_a_gap[*]"],
    ),
    Removal(
        SEQ,
        "the primary key of entries",
        [NO_ENTRY_KEY],
        ["store/test_log.py::test_the_schema_refuses_a_second_entry_at_a_position[*]"],
    ),
    Removal(
        SEQ,
        "both: head and key",
        [NO_ADVANCE, NO_ENTRY_KEY],
        ["store/test_log.py::test_entries_are_numbered_without_a_gap[*]"],
    ),
    Removal(
        SEQ,
        "an append that fails takes no position (a savepoint for each transaction of a group)",
        [Change(SQLITE_PY, 'connection.execute("rollback to job")', 'connection.execute("select 1")')],
        ["store/test_log.py::test_one_that_fails_among_many_at_once_fails_alone[sqlite-7]"],
    ),
    Removal(
        SEQ,
        "a fork of a fork reads each ancestor up to where it was left",
        [Change(LOG_SQL, "case when l.base_seq < l.upto then l.base_seq else l.upto end", "l.base_seq")],
        ["store/test_log.py::test_forks_of_forks_read_as_if_they_had_been_copied[*]"],
    ),
    Removal(
        FORK,
        "the row lock under which it is decided",
        [
            Change(
                NAMES_SQL,
                "select {conversation} from conversations where id = :id {for_update};",
                "select {conversation} from conversations where id = :id;",
            ),
            Change(
                NAMES_SQL,
                "select head_seq from conversations where id = :id {for_update};",
                "select head_seq from conversations where id = :id;",
            ),
            Change(
                NAMES_SQL,
                "where id = :id and principal = :principal and deleted_at is null {for_update};",
                "where id = :id and principal = :principal and (deleted_at is null);",
            ),
        ],
        ["store/test_races.py::test_of_two_continuations_of_one_response_one_stays_and_one_forks[postgres]"],
    ),
    Removal(
        FORK,
        "the row lock, where a conversation is named",
        [
            Change(
                NAMES_SQL,
                "and principal = :principal and deleted_at is null {for_update};\n\n-- name: lock_conversation",
                "and principal = :principal and deleted_at is null;\n\n-- name: lock_conversation",
            )
        ],
        [
            "store/test_races.py::test_turns_admitted_at_once_by_name_stand_in_one_line[postgres]",
            "store/test_races.py::test_of_two_that_would_rather_be_rejected_than_wait_one_is_admitted[postgres]",
        ],
    ),
    Removal(
        FORK,
        "whoever waited for the row lock sees what was committed meanwhile, whatever isolation the database has",
        [Change("store/postgres.py", '"default_transaction_isolation": "read committed", ', "")],
        [
            "store/test_connections.py::"
            f"test_whatever_isolation_a_database_has_who_waited_for_another_goes_on[{isolation}]"
            for isolation in ("repeatable read", "serializable")
        ],
    ),
    Removal(
        FORK,
        "at the tip it continues",
        [Change(ADMISSION_PY, 'if not waiting and not await tx.run("later_success", **later):', "if waiting is None:")],
        ["store/test_admission.py::test_after_the_tip_a_turn_continues_the_conversation[*]"],
    ),
    Removal(
        FORK,
        "elsewhere it forks",
        [
            Change(
                ADMISSION_PY,
                "_Place(await directory.fork(tx, principal, conversation, base), previous.id)",
                "_Place(conversation, previous.id)",
            )
        ],
        [
            "store/test_admission.py::test_after_another_turn_than_the_tip_a_turn_forks[*]",
            "engine/test_turns.py::test_an_older_turn_is_continued_in_a_fork[*]",
        ],
    ),
    Removal(
        FORK,
        "a turn admitted becomes the tip",
        [Change(TURNS_SQL, "tip_turn = coalesce(:tip, tip_turn)", "tip_turn = coalesce(tip_turn, :tip)")],
        ["store/test_admission.py::test_turns_are_numbered_in_the_order_of_admission_within_their_conversation[*]"],
    ),
    Removal(
        FORK,
        "and so does one that runs at once",
        [Change(TURNS_SQL, "tip_turn = :tip, head_seq", "tip_turn = coalesce(tip_turn, :tip), head_seq")],
        ["store/test_admission.py::test_after_another_turn_than_the_tip_a_turn_forks[*]"],
    ),
    Removal(
        FORK,
        "a client's retry takes the place of the try that failed",
        [
            Change(
                ADMISSION_PY,
                "if submission.retry and (again := await _place_again(tx, submission)) is not None:",
                "if (again := await _place_again(tx, submission)) is not None and not submission:",
            )
        ],
        [
            "store/test_admission.py::test_a_clients_retry_of_what_failed_is_a_new_try[*-failed]",
            "store/test_admission.py::test_a_clients_retry_of_a_first_message_that_failed_makes_no_second_conversation[*]",
        ],
    ),
    Removal(
        KEPT,
        "what cannot be read spoils nothing else",
        [Change("store/search.py", "    except Unreadable as error:\n", "    except KeyError as error:\n")],
        ["engine/test_damage.py::test_what_search_knows_and_cannot_be_read_any_more_is_no_hit[*]"],
    ),
    Removal(
        ONE,
        "a node that still runs a turn does not claim it anew",
        [Change("engine/worker.py", "        self._claiming.add(lease.turn.conversation_id)\n", "")],
        [
            "engine/test_lifecycle.py::test_a_turn_that_comes_back_to_a_node_that_still_runs_it_is_not_run_twice_there",
        ],
    ),
    Removal(
        KEPT,
        "a chore that fails takes nothing down",
        [
            Change(
                "engine/worker.py",
                "    except Exception as error:  # the boundary of a chore",
                "    except Unavailable as error:  # the boundary of a chore",
            )
        ],
        ["engine/test_damage.py::test_work_in_the_background_that_fails_takes_nothing_down[*]"],
    ),
    Removal(
        FORK,
        "nothing branches off an unfinished turn",
        [
            Change(
                TURNS_PY,
                "        if not turn.ended:\n            raise UnfinishedTurn(",
                "        if turn is None:\n            raise UnfinishedTurn(",
            )
        ],
        [
            "store/test_admission.py::test_nothing_branches_off_an_unfinished_turn[*-running]",
            "engine/test_busy.py::test_nothing_branches_off_a_turn_that_has_not_finished[*]",
        ],
    ),
    Removal(
        FORK,
        "what is named is looked at again under the lock (an input may have joined another turn)",
        [
            Change(
                ADMISSION_PY,
                "previous = await turns.standing(tx, named.id)",
                "previous = named if named.joined_turn is None else await turns.standing(tx, named.id)",
            )
        ],
        ["store/test_races.py::test_what_follows_an_input_that_joins_meanwhile_follows_its_host[postgres]"],
    ),
    Removal(
        FORK,
        "nothing is admitted to a conversation that was deleted meanwhile",
        [
            Change(
                NAMES_SQL,
                "where id = :id and principal = :principal and deleted_at is null {for_update};",
                "where id = :id and principal = :principal {for_update};",
            )
        ],
        [
            "store/test_races.py::test_nothing_is_admitted_to_a_conversation_that_is_deleted_meanwhile[postgres]",
            "store/test_directory.py::test_a_deleted_conversation_is_as_unknown_as_one_that_never_was[*]",
        ],
    ),
    Removal(
        UPKEEP,
        "upkeep never moves the tip",
        [Change(ADMISSION_PY, "tip = turn.id if talk else None", "tip = turn.id")],
        [
            "store/test_admission.py::test_upkeep_never_moves_the_tip[*]",
            "engine/test_busy.py::test_upkeep_waits_its_place_and_never_moves_the_tip[*]",
        ],
    ),
    Removal(
        UPKEEP,
        "a summary is published by compare-and-set",
        [Change(TURNS_PY, "!= turn.input.expects:", "== ():")],
        ["store/test_log.py::test_a_summary_of_what_is_no_longer_seen_is_refused[*-rewind]"],
    ),
    Removal(
        DURABLE,
        "a transaction is written before anyone hears of it: none of it stays when it fails",
        [
            Change(
                SQLITE_PY,
                'connection.execute("commit")\n        except',
                'connection.execute("rollback")\n        except',
            )
        ],
        ["store/test_admission.py::test_an_admitted_turn_is_still_there_after_a_restart[sqlite]"],
    ),
    Removal(
        DURABLE,
        "a commit waits for the disk",
        [Change(SQLITE_PY, '"synchronous = full",', '"synchronous = normal",')],
        [
            "crash/test_sync.py::test_each_of_many_writes_in_a_row_has_a_sync_of_its_own",
            "crash/test_sync.py::test_writes_at_the_same_time_share_syncs_and_each_still_waits_for_one",
        ],
    ),
    Removal(
        MEMORY,
        "nothing is written on into a file that is gone",
        [Change(SQLITE_PY, "            self._check_there()\n", "")],
        ["serve/test_disk.py::test_what_is_said_is_not_taken_into_a_file_that_is_gone[removed]"],
    ),
    Removal(
        MEMORY,
        "the database is the file that was named",
        [Change(SQLITE_PY, "apsw.Connection(str(self._path), vfs", 'apsw.Connection(":memory:", vfs')],
        [
            "store/test_admission.py::test_an_admitted_turn_is_still_there_after_a_restart[sqlite]",
            "store/test_keys_blobs.py::test_bytes_come_back_as_they_were_put[sqlite]",
        ],
    ),
    Removal(
        KEPT,
        "the input is in the log before the model is called",
        [Change(TURNS_PY, "given.hides), *given.drafts]", "given.hides)]")],
        [
            "store/test_leases.py::test_a_claim_takes_the_oldest_turn_and_writes_its_input[*]",
            "engine/test_turns.py::test_a_turn_answers_and_the_log_holds_what_was_said[*]",
        ],
    ),
    Removal(
        KEPT,
        "a tool call is committed before the tool runs",
        [
            Change(
                "engine/turn.py",
                "            await self._append(drafts, closing)\n            self._step = Step(",
                "            self._step = Step(",
            ),
            Change(
                "engine/turn.py",
                "            bodies += await self._call_tools(here, cast, again=False)\n",
                "            bodies += await self._call_tools(here, cast, again=False)\n"
                "            await self._append(drafts, closing)\n",
            ),
        ],
        ["engine/test_turns.py::test_a_tool_call_is_durable_before_the_tool_runs[*]"],
    ),
    Removal(
        KEPT,
        "entries are never changed (SQLite)",
        [Change(GUARDS_SQLITE, "before update on entries", "before update of created_at on api_keys")],
        ["store/test_migrations.py::test_entries_are_never_changed[sqlite]"],
    ),
    Removal(
        KEPT,
        "entries are never changed (PostgreSQL)",
        [Change(GUARDS_POSTGRES, "before update on entries", "before update of created_at on api_keys")],
        ["store/test_migrations.py::test_entries_are_never_changed[postgres]"],
    ),
    Removal(
        KEPT,
        "entries of a living conversation are kept (SQLite)",
        [Change(GUARDS_SQLITE, "id = old.conversation_id) is null", "id = old.conversation_id) is null and false")],
        ["store/test_migrations.py::test_entries_are_kept_while_their_conversation_lives[sqlite]"],
    ),
    Removal(
        KEPT,
        "entries of a living conversation are kept (PostgreSQL)",
        [
            Change(
                GUARDS_POSTGRES,
                "id = old.conversation_id) is null then",
                "id = old.conversation_id) is null and false then",
            )
        ],
        ["store/test_migrations.py::test_entries_are_kept_while_their_conversation_lives[postgres]"],
    ),
    Removal(
        FAILED,
        "a retry goes past tries that came to nothing",
        [Change(TURNS_SQL, "and t.status not in ('failed', 'cancelled')", "and t.status not in ('failed')")],
        [
            "store/test_admission.py::test_a_retry_stays_in_the_conversation_and_hides_the_try_before_it[*-cancelled]",
            "engine/test_turns.py::test_a_retry_after_a_cancelled_turn_hides_the_cancelled_try[*]",
        ],
    ),
    Removal(
        FAILED,
        "a retry hides the try before it",
        [Change(TURNS_PY, "for first, last in given.hides)", "for first, last in given.hides[:0])")],
        ["store/test_admission.py::test_a_retry_stays_in_the_conversation_and_hides_the_try_before_it[*-failed]"],
    ),
    Removal(
        OWED,
        "only a done turn owes its answer",
        [Change(OUTBOX_PY, 'if outcome.status != "done":', "if not outcome.status:")],
        ["store/test_outbox.py::test_an_answer_is_owed_only_when_the_turn_is_done[*]"],
    ),
    Removal(
        OWED,
        "a done turn owes its answer",
        [Change(OUTBOX_PY, 'if outcome.status != "done":', "if outcome.status:")],
        ["store/test_outbox.py::test_a_done_turn_owes_its_answer_to_every_address_of_its_conversation[*]"],
    ),
    Removal(
        OWED,
        "an end is one transaction",
        [
            Change(
                SQLITE_PY,
                'connection.execute("rollback")\n            raise\n        return outcomes',
                'connection.execute("commit")\n            raise\n        return outcomes',
            )
        ],
        ["store/test_leases.py::test_an_end_that_cannot_be_written_leaves_nothing_of_it[sqlite]"],
    ),
    Removal(
        OWED,
        "one delivery for a turn and an address",
        [Change(CORE, "    unique (turn_id, address)\n", "    check (address is not null)\n")],
        ["store/test_outbox.py::test_the_schema_refuses_to_owe_an_answer_twice[*]"],
    ),
    Removal(
        OWED,
        "where it was asked it is answered, wherever the address leads by then",
        [Change(OUTBOX_PY, "[*([origin] if origin is not None else []), *bound]", "bound")],
        ["store/test_outbox.py::test_where_it_was_asked_it_is_answered_wherever_the_address_leads_by_then[*]"],
    ),
    Removal(
        ONCE,
        "a message on a channel acts once",
        [Change("store/inbox.py", "[key for key in keys if await take(tx, key)]", "keys")],
        ["channels/test_conformance.py::test_a_redelivery_acts_once_also_after_a_crash[webhook]"],
    ),
    Removal(
        KEPT,
        "a call that nobody answers holds no summary back",
        [Change("domain/folding.py", "waiting, gone_on = {}, False", "gone_on = False")],
        [
            "engine/test_compaction.py::test_a_call_that_the_client_never_answers_keeps_nothing_from_being_summarised[*]",
            "domain/test_folding.py::test_a_late_result_stays_with_its_call_until_the_model_has_gone_on_without_it",
        ],
    ),
    Removal(
        KEPT,
        "a summary that is too long for a model stops no turn",
        [Change("domain/folding.py", "if total > room and isinstance(item, Message):", "if False:")],
        ["engine/test_compaction.py::test_a_summary_made_for_a_larger_window_is_cut_until_there_is_a_shorter_one[*]"],
    ),
    Removal(
        ONCE,
        "a retry that names nothing, or what is not there yet, waits for the first",
        [Change(ADMISSION_PY, 'await tx.run("await_request", request=_request(submission))', "pass")],
        [
            "store/test_races.py::"
            f"test_a_clients_retry_that_meets_the_first_on_its_way_in_is_the_same_turn[postgres-{how}]"
            for how in ("by nothing", "by a new name")
        ],
    ),
    Removal(
        ONE,
        "a lease is renewed whatever is locked",
        [
            Change(
                "store/nodes.py",
                'await tx.run("renew_node", node=node, ttl=ttl)\n',
                'await tx.run("renew_node", node=node, ttl=ttl)\n    await held(tx, node)\n',
            )
        ],
        ["engine/test_lifecycle.py::test_a_table_that_is_locked_for_longer_than_a_lease_takes_no_turn_away"],
    ),
    Removal(
        WINDOW,
        "what is taken back takes what it hid back with it",
        [Change("engine/commands.py", "said.begun - 1", "said.seq - 1")],
        ["api/test_commands.py::test_undo_after_a_retry_brings_the_first_try_back_and_takes_no_more_than_people_see"],
    ),
    Removal(
        KEPT,
        "a window that was learned is forgotten",
        [Change("engine/compaction.py", "if time.monotonic() - since < REMEMBERED else None", "")],
        ["engine/test_compaction.py::test_a_refusal_is_believed_for_a_while_and_then_forgotten[*]"],
    ),
    Removal(
        KEPT,
        "a refusal of a long answer is no word on the window",
        [
            Change("engine/compaction.py", "if isinstance(answer, int) and size + answer > window:", "if False:"),
            Change("engine/compaction.py", "if size >= LEAST:", "if True:"),
        ],
        ["engine/test_compaction.py::test_a_refusal_of_a_long_answer_is_no_word_on_the_window[*]"],
    ),
    Removal(
        KEPT,
        "what a summary of a part leaves over stays verbatim",
        [Change("engine/compaction.py", "for seq in (*left, *plan.pins)", "for seq in plan.pins")],
        ["engine/test_compaction.py::test_what_a_summary_of_a_part_leaves_over_stays_word_for_word[*]"],
    ),
    Removal(
        KEPT,
        "a summary of a part is not sold as one of everything",
        [Change("engine/gateway.py", "if body.upto < plan.upto or made.drafts[1:]:", "if False:")],
        ["engine/test_compaction.py::test_a_past_of_which_only_a_part_can_be_summarised_is_not_condensed[*]"],
    ),
    Removal(
        KEPT,
        "what is purged meanwhile keeps nothing else out of an export",
        [Change("store/portable.py", "except UnknownHandle:", "except AssertionError:")],
        ["store/test_portable.py::test_what_is_purged_in_the_middle_of_an_export_keeps_nothing_else_out_of_it[*]"],
    ),
    Removal(
        KEPT,
        "a conversation that cannot be read takes no list down",
        [Change(NAMES_PY, "    except Unreadable:\n", "    except AssertionError:\n")],
        [
            "engine/test_damage.py::"
            "test_a_conversation_whose_settings_cannot_be_read_is_listed_and_what_runs_there_ends[*]"
        ],
    ),
    Removal(
        KEPT,
        "a purge leaves what forks read",
        [Change("store/trash.py", "(base for _, base in forks if base > conversation.base_seq)", "()")],
        ["store/test_trash.py::test_forks_keep_what_they_read_and_no_more[*]"],
    ),
    Removal(
        NAME,
        "what is restored takes no name from another",
        [Change("store/trash.py", "if (scheme, value) not in set(back)", "if False")],
        ["store/test_trash.py::test_a_name_that_somebody_took_meanwhile_stays_theirs[*]"],
    ),
    Removal(
        OWNER,
        "a conversation of another cannot be imported over",
        [Change("store/portable.py", "    if owner != principal:\n", "    if not owner:\n")],
        ["store/test_portable.py::test_what_is_anothers_or_in_the_trash_or_fits_nowhere_is_refused[*]"],
    ),
    Removal(
        OWED,
        "what a living node sends is not in doubt",
        [
            Change(
                OUTBOX_SQL,
                "nodes.id = deliveries.owner and nodes.lease_until > {now})\nand substr",
                "nodes.id is null)\nand substr",
            )
        ],
        ["store/test_outbox.py::test_only_what_a_dead_node_was_sending_is_in_doubt[*]"],
    ),
    Removal(
        OWED,
        "only who sends an answer settles it",
        [
            Change(
                OUTBOX_SQL,
                "and owner = :node returning id;\n\n-- name: part_sent",
                "and (owner is not null or owner = :node) returning id;\n\n-- name: part_sent",
            )
        ],
        ["store/test_outbox.py::test_whoever_no_longer_sends_an_answer_has_no_say_in_it[*]"],
    ),
    Removal(
        LEAVE,
        "whoever stops following stops nothing",
        [
            Change(
                "engine/gateway.py",
                "            async for place, events in self._live.follow(turn.id, n):\n"
                "                yield place, events\n",
                "            try:\n"
                "                async for place, events in self._live.follow(turn.id, n):\n"
                "                    yield place, events\n"
                "            finally:\n"
                "                self._worker.stop(turn.id)\n",
            ),
        ],
        ["engine/test_follow.py::test_hanging_up_at_any_event_changes_nothing[*-5]"],
    ),
    Removal(
        LEAVE,
        "an admission goes on when its client leaves",
        [
            Change(
                "engine/gateway.py",
                "return await self._worker.detach(self._admit(submission))",
                "return await self._admit(submission)",
            )
        ],
        ["engine/test_lifecycle.py::test_a_client_that_leaves_while_its_turn_is_admitted_stops_nothing[sqlite]"],
    ),
    Removal(
        CACHE,
        "a follower reads from memory only what memory holds",
        [Change("engine/live.py", "if feed is not None and n >= feed.start:", "if feed is not None:")],
        ["engine/test_follow.py::test_hanging_up_at_any_event_changes_nothing[sqlite-5]"],
    ),
    Removal(
        ONE,
        "a process that stands still in mid statement is not waited for",
        [Change("store/postgres.py", "                await self._end_stalled()", "                pass")],
        ["store/test_races.py::test_a_process_that_stands_still_in_mid_statement_is_not_waited_for"],
    ),
    Removal(
        MEMORY,
        "a migration that loses a race against nodes at work tries again",
        [
            Change(
                "store/postgres.py",
                "        except (asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError) as error:",
                "        except asyncpg.LockNotAvailableError as error:",
            )
        ],
        ["store/test_migrations.py::test_a_migration_and_a_node_at_work_that_wait_for_each_other_both_get_through"],
    ),
    Removal(
        ID,
        "two processes do not draw the same id",
        [
            Change(
                "domain/ids.py",
                "os.register_at_fork(after_in_child=_ready.clear)",
                "os.register_at_fork(before=_ready.copy)",
            )
        ],
        ["domain/test_ids.py::test_a_fork_draws_different_ids"],
    ),
    Removal(
        OWED,
        "a message is not sent again where its connection broke",
        [Change("outgoing.py", "                if not self._repeatable:\n                    raise\n", "")],
        [
            "test_outgoing.py::test_what_must_not_happen_twice_is_not_sent_twice",
            "channels/test_telegram_parts.py::test_a_message_is_not_sent_again_when_a_kept_connection_breaks",
        ],
    ),
    Removal(
        CACHE,
        "a past is used only where the log still begins so",
        [
            Change(
                "store/log.py",
                "known is not None and window.known(seen, known.upto) == known else 0",
                "known is not None else 0",
            )
        ],
        [
            "store/test_log.py::test_forks_of_forks_read_as_if_they_had_been_copied[*]",
            "engine/test_identity.py::test_a_conversation_is_one_conversation_whatever_happens[sqlite-1]",
        ],
    ),
    Removal(
        CACHE,
        "a summary is read again where the newer one was undone",
        [Change("domain/window.py", 'REVIVING = ("expand", "rewind")', "REVIVING = ()")],
        ["store/test_log.py::test_forks_of_forks_read_as_if_they_had_been_copied[*]"],
    ),
    Removal(
        CACHE,
        "a past is of one life of a conversation",
        [
            Change(
                "store/log.py",
                "begun is not None and begun.life == life(fence)",
                "begun is not None",
            )
        ],
        ["engine/test_pasts.py::test_what_was_purged_and_imported_with_other_words_is_read_again"],
    ),
    Removal(
        CACHE,
        "what is imported begins a life of its own",
        [Change("store/sql/portable.sql", "cast({now} * 1000 as bigint) * {life},", "0,")],
        ["engine/test_pasts.py::test_what_was_purged_and_imported_with_other_words_is_read_again"],
    ),
    Removal(
        CACHE,
        "what is kept of a log is all of it only where nobody wrote since",
        [Change("engine/turn.py", "kept.is_all(self.turn, fence):", "kept.fence is not None:")],
        ["engine/test_identity.py::test_a_conversation_is_one_conversation_whatever_happens[sqlite-1]"],
    ),
    Removal(
        CACHE,
        "a fence alone does not tell that nobody wrote",
        [
            Change(
                "engine/pasts.py",
                "self.fence == fence - 1 and self.turn == turn.parent_turn",
                "self.fence == fence - 1",
            )
        ],
        ["engine/test_pasts.py::test_what_a_database_lost_is_forgotten_here_too[more0]"],
    ),
    Removal(
        CACHE,
        "a past is of a log that still has its last entry",
        [Change("store/log.py", "same = begun.last == await", "same = begun.last != 0 or await")],
        ["engine/test_pasts.py::test_what_a_database_lost_is_forgotten_here_too[more1]"],
    ),
    Removal(
        CACHE,
        "a past ends where nothing that comes later changes it",
        [Change("domain/shape.py", "        if shaper.calls or shaper.cut_off is not None or (", "        if (")],
        ["domain/test_shape.py::test_what_was_made_of_a_past_is_not_made_again"],
    ),
    Removal(
        CACHE,
        "what joins what was said before is not added to what was made of it",
        [
            Change(
                "domain/shape.py",
                'return not items or (isinstance(items[0], Message) and items[0].role != "assistant")',
                "return True",
            )
        ],
        ["domain/test_shape.py::test_what_was_made_of_a_past_is_not_made_again"],
    ),
    Removal(
        CACHE,
        "after a summary in mid turn the past is another",
        [
            Change(
                "engine/turn.py",
                "        self._past = prompt.past_of(view.summary)\n        return [entry",
                "        return [entry",
            )
        ],
        ["engine/test_compaction.py::test_a_long_past_that_is_folded_in_mid_turn_is_told_by_its_summary[*]"],
    ),
    Removal(
        PREFIX,
        "a setup is written once",
        [Change("engine/turn.py", "        if setup != cast.setup:", "        if cast.setup is not None:")],
        ["engine/test_turns.py::test_a_setup_is_written_once_and_again_only_when_the_agent_changes[*]"],
    ),
    Removal(
        PREFIX,
        "what was sent is extended and never rewritten",
        [Change("engine/prompt.py", "shape(bodies, past)", "shape([*past.items, *bodies][::-1])")],
        ["engine/test_turns.py::test_what_the_model_was_sent_is_extended_and_never_rewritten[*]"],
    ),
    Removal(
        OWNER,
        "a conversation is found by its owner",
        [
            Change(
                NAMES_SQL,
                "from conversations where id = :id and principal = :principal and deleted_at is null;",
                "from conversations where id = :id and (principal = :principal or true) and deleted_at is null;",
            )
        ],
        ["store/test_directory.py::test_anothers_conversation_is_as_unknown_as_one_that_never_was[*]"],
    ),
    Removal(
        OWNER,
        "a conversation is written to by its owner",
        [
            Change(
                NAMES_SQL,
                "where id = :id and principal = :principal and deleted_at is null {for_update};",
                "where id = :id and (principal = :principal or true) and deleted_at is null {for_update};",
            )
        ],
        ["store/test_admission.py::test_anothers_conversation_is_as_unknown_as_one_that_never_was[*]"],
    ),
    Removal(
        OWNER,
        "a turn is found by its owner",
        [
            Change(
                TURNS_SQL,
                "from turns where id = :id and principal = :principal and",
                "from turns where id = :id and (principal = :principal or true) and",
            )
        ],
        [
            "store/test_admission.py::test_anothers_turn_is_as_unknown_as_one_that_never_was[*]",
            "store/test_leases.py::test_nobody_cancels_anothers_turn[*]",
        ],
    ),
    Removal(
        KEPT,
        "a chat that is told again is told once",
        [Change("engine/gateway.py", "late = Latecomer(told)", "late = Latecomer([])")],
        ["api/test_stories.py::test_a_chat_that_is_asked_again_after_kill_9_in_its_answer_is_told_once[600]"],
    ),
    Removal(
        OWNER,
        "what is said is told by its id to its owner",
        [
            Change(
                LOG_SQL,
                "and t.principal = :principal and t.deleted_at is null and e.id",
                "and :principal <> '' and e.id",
            )
        ],
        ["api/test_openai_client.py::test_items_are_referred_to_by_their_ids"],
    ),
    Removal(
        OWNER,
        "a list shows its owner's",
        [
            Change(
                NAMES_SQL,
                "where principal = :principal and deleted_at is null and head_seq",
                "where (principal = :principal or true) and deleted_at is null and head_seq",
            )
        ],
        ["store/test_directory.py::test_the_newest_conversations_come_first_and_only_those_that_hold_something[*]"],
    ),
    Removal(
        OWNER,
        "a blob is its owner's",
        [
            Change(
                "store/sql/blobs.sql",
                "from blobs where principal = :principal and",
                "from blobs where (principal = :principal or true) and",
            )
        ],
        ["store/test_keys_blobs.py::test_a_hash_grants_nothing[*]"],
    ),
    Removal(
        OWNER,
        "only a hash of a key is stored",
        [
            Change(
                "store/keys.py", 'return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()', "return key"
            )
        ],
        ["store/test_keys_blobs.py::test_the_database_gives_no_key_away[*]"],
    ),
    Removal(
        OWNER,
        "a revoked key grants nothing",
        [Change("store/sql/keys.sql", "where hash = :hash and revoked_at is null", "where hash = :hash")],
        ["store/test_keys_blobs.py::test_a_revoked_key_grants_nothing[*]"],
    ),
    Removal(
        SHAPE,
        "every call is answered, directly after the calls of its step",
        [
            Change(
                "domain/shape.py",
                " or ToolResult(call_id, UNANSWERED, is_error=True))",
                ' or Message("user", (Text(UNANSWERED),)))',
            )
        ],
        ["domain/test_shape.py::test_every_sequence_of_bodies_becomes_a_well_formed_request"],
    ),
    Removal(
        SHAPE,
        "call ids are unique",
        [Change("domain/shape.py", "if call_id not in self.seen:", "if call_id is not self.seen:")],
        ["domain/test_shape.py::test_every_sequence_of_bodies_becomes_a_well_formed_request"],
    ),
    Removal(
        SHAPE,
        "each name means one tool, the client's before ours",
        [
            Change(
                "engine/prompt.py",
                "tuple(({tool.name: tool for tool in setup.tools} | options.tools_by_name).values())",
                "setup.tools + options.tools",
            )
        ],
        ["engine/test_turns.py::test_a_tool_of_the_client_takes_the_place_of_ours_for_its_turn[*]"],
    ),
    Removal(
        WINDOW,
        "a rewind hides what follows a position",
        [Change("domain/window.py", "            head = control.ref\n", "            head = control.seq - 1\n")],
        ["domain/test_window.py::test_the_window_of_any_log_is_what_replaying_it_entry_by_entry_gives"],
    ),
    Removal(
        WINDOW,
        "only living controls count",
        [Change("domain/window.py", "living = [c for c in known if _within(c.seq, shown)]", "living = list(known)")],
        ["domain/test_window.py::test_the_window_of_any_log_is_what_replaying_it_entry_by_entry_gives"],
    ),
    Removal(
        WINDOW,
        "a removed entry is seen by nobody",
        [Change("domain/window.py", '        if control.kind == "remove":', "        if control.seq < 0:")],
        ["domain/test_window.py::test_the_window_of_any_log_is_what_replaying_it_entry_by_entry_gives"],
    ),
    Removal(
        WINDOW,
        "what a compaction kept is kept until there is another",
        [Change("domain/window.py", "c.first and summary and c.seq < summary.seq)", "c.seq < 0)")],
        [
            "domain/test_window.py::test_what_a_compaction_kept_is_kept_until_there_is_another",
            "engine/test_compaction.py::test_what_long_turns_were_asked_is_kept_until_the_next_summary[*]",
        ],
    ),
    Removal(
        WINDOW,
        "what one fold kept is folded by the next",
        [Change("domain/folding.py", "if entry.seq > after or entry.seq in kept]", "if entry.seq > after]")],
        [
            "domain/test_folding.py::test_what_one_fold_kept_is_folded_by_the_next_unless_it_is_still_the_latest_input",
            "engine/test_compaction.py::test_what_long_turns_were_asked_is_kept_until_the_next_summary[*]",
        ],
    ),
    Removal(
        TURNS,
        "legal transitions (SQLite)",
        [
            Change(
                "store/migrations/0010_light.sqlite.sql",
                "when old.status <> new.status\n",
                "when old.status <> new.status and 1 = 0\n",
            )
        ],
        ["store/test_migrations.py::test_the_trigger_knows_the_same_transitions_as_the_domain[sqlite]"],
    ),
    Removal(
        TURNS,
        "legal transitions (PostgreSQL)",
        [
            Change(
                GUARDS_POSTGRES,
                "when (old.status <> new.status and not (",
                "when (old.status <> new.status and false and not (",
            )
        ],
        ["store/test_migrations.py::test_the_trigger_knows_the_same_transitions_as_the_domain[postgres]"],
    ),
    Removal(
        TURNS,
        "an interrupt goes before the queue",
        [Change(TURNS_SQL, "(q.busy = 'interrupt') desc, q.n limit 1", "q.n limit 1")],
        [
            "store/test_leases.py::test_an_interrupt_goes_before_the_queue[*]",
            "engine/test_busy.py::test_an_interrupt_stops_the_running_turn_and_goes_before_the_queue[*]",
        ],
    ),
    Removal(
        TURNS,
        "the order of admission is the order of the queue",
        [
            Change(
                TURNS_SQL, "(q.busy = 'interrupt') desc, q.n limit 1", "(q.busy = 'interrupt') desc, q.n desc limit 1"
            )
        ],
        [
            "store/test_leases.py::test_a_claim_takes_the_oldest_turn_and_writes_its_input[*]",
            "engine/test_busy.py::test_queued_inputs_are_answered_in_the_order_of_admission[*-]",
        ],
    ),
    Removal(
        TURNS,
        "the number in the order is drawn under the row lock",
        [
            Change(TURNS_SQL, "last_n = :n, tip_turn = coalesce", "last_n = last_n + 0 * :n, tip_turn = coalesce"),
            Change(TURNS_SQL, "last_n = :n, tip_turn = :tip", "last_n = last_n + 0 * :n, tip_turn = :tip"),
        ],
        ["store/test_admission.py::test_turns_are_numbered_in_the_order_of_admission_within_their_conversation[*]"],
    ),
    Removal(
        OWED,
        "an answer that cannot be read holds up none after it",
        [Change("engine/deliver.py", "except DecodeError:", "except AssertionError:")],
        ["engine/test_exchange.py::test_an_answer_that_cannot_be_read_holds_up_none_after_it"],
    ),
    Removal(
        TURNS,
        "a turn that cannot be read is given up",
        [Change(TURNS_PY, "head = await _give_up(tx, conversation_id, row[0], error)\n            continue", "raise")],
        [
            f"engine/test_damage.py::test_a_turn_that_cannot_be_read_itself_ends_and_the_conversation_goes_on[*-{which}]"
            for which in ("running", "waiting")
        ],
    ),
    Removal(
        TURNS,
        "answers to an address are sent one at a time",
        [
            Change(
                OUTBOX_SQL,
                "= cast(:channel as text)\n    and not exists (",
                "= cast(:channel as text)\n    and 1 = 1 or not exists (",
            )
        ],
        ["store/test_outbox.py::test_answers_to_an_address_are_sent_in_order_one_at_a_time[*]"],
    ),
    Removal(
        TURNS,
        "an address has one answer in flight (unique index)",
        [Change(CORE, "create unique index deliveries_one_in_flight", "create index deliveries_one_in_flight")],
        ["store/test_outbox.py::test_the_schema_refuses_two_answers_in_flight_to_one_address[*]"],
    ),
    Removal(
        TURNS,
        "an input joins under the row lock",
        [
            Change(
                TURNS_PY,
                "    await log.append(tx, conversation_id, lease.fence, lease.turn.id, ())  # the lock, before",
                "    # the lock, before",
            )
        ],
        ["store/test_races.py::test_an_input_cancelled_while_it_is_about_to_join_is_not_said[postgres]"],
    ),
    Removal(
        TURNS,
        "a turn that was handed back goes before everything",
        [Change(TURNS_SQL, "(q.first_seq is not null) desc, ", "")],
        ["store/test_leases.py::test_a_turn_that_was_handed_back_goes_before_everything[*]"],
    ),
    Removal(
        TURNS,
        "a wish to cancel follows an input to its host",
        [Change(TURNS_PY, "host = await _host(tx, await get(tx, turn.id))", "host = await _host(tx, turn)")],
        ["store/test_races.py::test_a_wish_to_cancel_follows_an_input_that_joins_meanwhile[postgres]"],
    ),
]
