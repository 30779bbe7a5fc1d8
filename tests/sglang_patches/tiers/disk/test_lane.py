# SPDX-License-Identifier: Apache-2.0
"""Jobs of a lane are done in order, or given up in time; one that holds is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_patches.tiers.disk.lane import GivenUpError, Job, Lane
from tests.helpers.ends import SLOWEST_S
from tests.sglang_patches.tiers.disk.gates import Gate, HoldingGate
from tests.sglang_patches.tiers.disk.make import Clock

pytestmark = pytest.mark.sglang

RUN_S, WAIT_S = 10.0, 100.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def make_lane(clock: Clock) -> Iterator[Callable[..., Lane]]:
    """`make_lane(num_threads=2)`; every lane is closed behind the test."""
    lanes: list[Lane] = []

    def make(num_threads: int = 1, max_waiting: int = 8, max_stuck: int = 4) -> Lane:
        lanes.append(Lane("test lane", num_threads, max_waiting, clock, max_stuck))
        return lanes[-1]

    yield make
    for lane in lanes:
        lane.close()


def job_of(work: Callable[[Job], Any], tag: Any = None) -> Job:
    return Job(work, RUN_S, WAIT_S, tag)


def await_over(lane: Lane, number: int) -> list[Job]:
    """The next `number` jobs that are over, in that order."""
    over: list[Job] = []
    deadline = time.monotonic() + SLOWEST_S
    while len(over) < number:
        assert time.monotonic() < deadline
        lane.wait(0.05)
        over += lane.poll()
    return over


def await_stuck(lane: Lane, number: int) -> None:
    deadline = time.monotonic() + SLOWEST_S
    while lane.num_stuck != number:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_jobs_are_done_in_the_order_they_came(make_lane: Callable[..., Lane]) -> None:
    lane, done = make_lane(), []
    for number in range(5):
        assert lane.submit(job_of(lambda job: done.append(job.tag), tag=number))
    assert [job.tag for job in await_over(lane, 5)] == done == [0, 1, 2, 3, 4]
    assert lane.num_open == lane.num_stuck == 0
    assert lane.poll() == []


def test_the_outcome_is_the_result_or_what_was_raised(make_lane: Callable[..., Lane]) -> None:
    lane = make_lane()
    error = OSError("no such disk")

    def fail(job: Job) -> None:
        raise error

    lane.submit(job_of(lambda job: 7))
    lane.submit(job_of(fail))
    lane.submit(job_of(lambda job: "still served"))
    assert [job.outcome for job in await_over(lane, 3)] == [7, error, "still served"]


def test_seconds_run_leave_out_the_wait(make_lane: Callable[..., Lane], clock: Clock) -> None:
    lane, gate, next_gate = make_lane(), Gate(), Gate()
    lane.submit(job_of(gate))
    gate.await_begin()
    lane.submit(job_of(next_gate))
    clock.now = 3.0
    gate.opened.set()
    next_gate.await_begin()
    clock.now = 5.0
    next_gate.opened.set()
    assert [job.seconds_run for job in await_over(lane, 2)] == [3.0, 2.0]


def test_as_many_jobs_run_at_once_as_there_are_threads(make_lane: Callable[..., Lane]) -> None:
    lane = make_lane(num_threads=3)
    gates = [Gate() for _ in range(4)]
    for gate in gates:
        lane.submit(job_of(gate))
    for gate in gates[:3]:
        gate.await_begin()
    assert not gates[3].begun.is_set()
    assert lane.num_open == 4
    gates[1].opened.set()
    gates[3].await_begin()
    for gate in gates:
        gate.opened.set()
    assert len(await_over(lane, 4)) == 4


def test_a_full_queue_takes_only_what_is_forced(make_lane: Callable[..., Lane]) -> None:
    lane, gate = make_lane(max_waiting=2), Gate()
    lane.submit(job_of(gate))
    gate.await_begin()  # it runs, so it does not wait any more
    assert lane.submit(job_of(lambda job: "a"))
    assert lane.submit(job_of(lambda job: "b"))
    assert not lane.submit(job_of(lambda job: "too many"))
    assert lane.submit(job_of(lambda job: "forced"), is_forced=True)
    gate.opened.set()
    assert [job.outcome for job in await_over(lane, 4)] == ["done", "a", "b", "forced"]
    assert lane.submit(job_of(lambda job: "room again"))
    assert await_over(lane, 1)[0].outcome == "room again"


def test_a_forced_job_takes_no_room_of_the_others(make_lane: Callable[..., Lane]) -> None:
    lane, gate = make_lane(max_waiting=1), Gate()
    lane.submit(job_of(gate))
    gate.await_begin()
    for _ in range(3):
        assert lane.submit(job_of(lambda job: "forced"), is_forced=True)
    assert lane.submit(job_of(lambda job: "counted"))
    assert not lane.submit(job_of(lambda job: "too many"))
    gate.opened.set()
    assert len(await_over(lane, 5)) == 5


def test_a_job_that_hangs_is_given_up_and_another_thread_takes_its_place(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, hanging = make_lane(), Gate()
    lane.submit(job_of(hanging, tag="hangs"))
    lane.submit(job_of(lambda job: "next", tag="next"))
    hanging.await_begin()
    clock.now = RUN_S
    assert lane.poll() == []  # it may run so long
    clock.now = RUN_S + 0.1
    [given_up] = lane.poll()
    assert given_up.tag == "hangs"
    assert isinstance(given_up.outcome, TimeoutError)
    assert "no answer within 10 s" in str(given_up.outcome)
    assert [job.outcome for job in await_over(lane, 1)] == ["next"]
    assert lane.num_stuck == 1

    hanging.opened.set()
    await_stuck(lane, 0)
    assert lane.poll() == []  # what came too late counts no more
    assert isinstance(given_up.outcome, TimeoutError)


def test_a_job_that_waits_too_long_is_never_begun(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, gate, begun = make_lane(), HoldingGate(), list[Any]()
    lane.submit(job_of(gate))
    gate.await_begin()
    lane.submit(job_of(begun.append))
    clock.now = WAIT_S
    assert lane.poll() == []
    clock.now = WAIT_S + 1
    [late] = lane.poll()
    assert "not begun within 100 s" in str(late.outcome)
    assert late.seconds_run is None
    gate.opened.set()
    assert [job.outcome for job in await_over(lane, 1)] == ["held"]
    assert begun == []
    assert lane.num_open == 0


def test_the_wait_counts_against_what_a_job_may_take_in_all(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, first, second = make_lane(), Gate(), Gate()
    lane.submit(Job(first, run_s=1000.0, wait_s=1000.0, tag=None))
    first.await_begin()
    lane.submit(job_of(second))
    clock.now = WAIT_S - 1
    first.opened.set()
    second.await_begin()
    await_over(lane, 1)
    clock.now = WAIT_S + 1  # it has run for two seconds only
    [given_up] = lane.poll()
    assert isinstance(given_up.outcome, TimeoutError)
    second.opened.set()
    await_stuck(lane, 0)


def test_a_job_that_holds_is_not_given_up(make_lane: Callable[..., Lane], clock: Clock) -> None:
    lane, gate = make_lane(), HoldingGate()
    lane.submit(job_of(gate))
    gate.await_begin()
    clock.now = 10 * WAIT_S
    assert lane.poll() == []
    assert (lane.num_open, lane.num_stuck) == (1, 0)
    gate.opened.set()
    [job] = await_over(lane, 1)
    assert job.outcome == "held"
    assert job.seconds_run == 10 * WAIT_S


def test_a_job_that_has_held_can_be_given_up_again(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, behind = make_lane(), Gate()

    def hold_then_hang(job: Job) -> Any:
        with job.holding():
            pass
        return behind(job)

    lane.submit(job_of(hold_then_hang))
    behind.await_begin()
    clock.now = RUN_S + 1
    [job] = lane.poll()
    assert isinstance(job.outcome, TimeoutError)
    behind.opened.set()
    await_stuck(lane, 0)


@pytest.mark.parametrize("is_block", [True, False], ids=["holding", "settle"])
def test_who_was_given_up_may_not_hold(
    is_block: bool, make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, gate, touched, ended = make_lane(), Gate(), list[str](), threading.Event()
    refused: list[BaseException] = []

    def work(job: Job) -> None:
        gate(job)
        try:
            if is_block:
                with job.holding():
                    touched.append("memory that is not its own any more")
            else:
                job.settle()
                touched.append("a result that nobody waits for")
        except GivenUpError as error:
            refused.append(error)
            raise
        finally:
            ended.set()

    lane.submit(job_of(work))
    gate.await_begin()
    clock.now = RUN_S + 1
    assert len(lane.poll()) == 1
    gate.opened.set()
    assert ended.wait(SLOWEST_S)
    assert touched == []
    assert len(refused) == 1
    await_stuck(lane, 0)


def test_a_settled_job_counts_however_long_it_takes(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane, gate = make_lane(), Gate("settled")

    def work(job: Job) -> Any:
        job.settle()
        return gate(job)

    lane.submit(job_of(work))
    gate.await_begin()
    clock.now = 10 * WAIT_S
    assert lane.poll() == []
    gate.opened.set()
    assert await_over(lane, 1)[0].outcome == "settled"


def test_after_too_many_stuck_threads_none_is_started(
    make_lane: Callable[..., Lane], clock: Clock
) -> None:
    lane = make_lane(max_stuck=2)
    gates = [Gate() for _ in range(3)]
    for number, gate in enumerate(gates):
        lane.submit(Job(gate, RUN_S, 10 * WAIT_S, tag=number))
    for number in range(2):
        gates[number].await_begin()
        clock.now += RUN_S + 1
        assert [job.tag for job in await_over(lane, 1)] == [number]
    assert lane.num_stuck == 2
    assert lane.poll() == []
    assert not gates[2].begun.is_set()
    gates[0].opened.set()
    await_stuck(lane, 1)
    lane.poll()  # a thread has come back, so another may be started
    gates[2].await_begin()
    for gate in gates:
        gate.opened.set()
    assert [job.outcome for job in await_over(lane, 1)] == ["done"]


def test_a_closed_lane_ends_what_waits_and_takes_nothing_more(
    make_lane: Callable[..., Lane],
) -> None:
    lane, gate = make_lane(), Gate()
    lane.submit(job_of(gate))
    lane.submit(job_of(lambda job: "waiting"))
    lane.close()
    assert not lane.submit(job_of(lambda job: "late"))
    assert not lane.submit(job_of(lambda job: "late"), is_forced=True)
    gate.opened.set()
    assert [job.outcome for job in await_over(lane, 2)] == ["done", "waiting"]


def test_the_threads_of_a_closed_lane_end() -> None:
    name = "a lane that is closed"
    lane = Lane(name, 2, 8, time.monotonic)
    for _ in range(4):
        lane.submit(job_of(lambda job: None))
    await_over(lane, 4)
    lane.close()
    for thread in threading.enumerate():
        if thread.name == name:
            thread.join(SLOWEST_S)
            assert not thread.is_alive()


def test_waiting_ends_when_a_job_is_over_and_at_once_when_there_is_none(
    make_lane: Callable[..., Lane],
) -> None:
    lane, gate = make_lane(), Gate()
    lane.wait(SLOWEST_S)  # nothing is open, so there is nothing to wait for
    lane.submit(job_of(gate))
    gate.await_begin()
    threading.Timer(0.02, gate.opened.set).start()
    lane.wait(SLOWEST_S)
    assert [job.outcome for job in lane.poll()] == ["done"]


@settings(max_examples=30)
@given(
    num_threads=st.integers(1, 3),
    max_waiting=st.integers(0, 4),
    jobs=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=20),
)
def test_every_job_that_was_taken_is_over_exactly_once(
    num_threads: int, max_waiting: int, jobs: list[tuple[bool, bool]]
) -> None:
    lane = Lane("test lane", num_threads, max_waiting, time.monotonic)

    def work(job: Job) -> Any:
        if job.tag % 3 == 0:
            raise OSError("one in three fails")
        with job.holding():
            return job.tag

    taken, over = [], list[Job]()
    for number, (is_forced, polls) in enumerate(jobs):
        if lane.submit(Job(work, SLOWEST_S, SLOWEST_S, number), is_forced=is_forced):
            taken.append(number)
        else:
            assert not is_forced
        over += lane.poll() if polls else []
    over += await_over(lane, len(taken) - len(over))
    lane.close()
    assert sorted(job.tag for job in over) == taken
    assert all(isinstance(job.outcome, OSError) == (job.tag % 3 == 0) for job in over)
    assert (lane.num_open, lane.num_stuck) == (0, 0)
