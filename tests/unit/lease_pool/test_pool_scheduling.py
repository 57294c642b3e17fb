"""The scheduler as a pure function: its rules one by one, and its promises over random snapshots."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from lease_pool.scheduling import CardView, Join, Room, Start, Want, fits, may_use, plan


def card(slot: str, memory: int = 10, **keys: object) -> CardView:
    return CardView(slot, memory, **keys)  # type: ignore[arg-type]


def busy(slot: str, model: str, *, shares: int = 1, idle: bool = False, memory: int = 10) -> CardView:
    return CardView(slot, memory, frozenset(), Room.WORKER, model, shares, True, idle)


def test_the_smallest_fitting_card_is_taken_first() -> None:
    assert plan([card("a", 30), card("b", 10), card("c", 20)], [Want(1, "m", 15)]) == [Start(1, ("c",))]


def test_equal_cards_are_taken_in_the_declared_order() -> None:
    assert plan([card("b"), card("a")], [Want(1, "m", 5), Want(2, "m", 5)]) == [Start(1, ("b",)), Start(2, ("a",))]


def test_labels_decide_before_size() -> None:
    cards = [card("a", 10), card("b", 20, labels=frozenset({"ada"}))]
    assert plan(cards, [Want(1, "m", 5, frozenset({"ada"}))]) == [Start(1, ("b",))]


def test_a_mining_card_is_preferred_to_a_leaving_one() -> None:
    assert plan([card("a", 10, room=Room.LEAVING), card("b", 20)], [Want(1, "m", 5)]) == [Start(1, ("b",))]
    assert plan([card("a", 10, room=Room.LEAVING)], [Want(1, "m", 5)]) == [Start(1, ("a",))]


def test_a_request_joins_its_model_s_worker_up_to_its_slots() -> None:
    wants = [Want(n, "m", 5, parallel=3) for n in range(1, 4)]
    assert plan([busy("a", "m")], wants) == [Join(1, "a"), Join(2, "a")]


def test_a_request_does_not_pass_an_older_waiter_of_another_model_that_fits_the_card() -> None:
    older, mine = Want(1, "other", 5), Want(2, "m", 5, parallel=4)
    assert plan([busy("a", "m")], [older, mine]) == []
    too_large = Want(1, "other", 50)
    assert plan([busy("a", "m")], [too_large, mine]) == [Join(2, "a")]


def test_an_older_waiter_that_backs_off_on_the_card_is_no_reason_to_wait() -> None:
    older, mine = Want(1, "other", 5), Want(2, "m", 5, parallel=4)
    assert plan([busy("a", "m")], [older, mine], {("other", "a")}) == [Join(2, "a")]


def test_requests_that_start_a_worker_share_it_at_once() -> None:
    wants = [Want(n, "m", 5, parallel=2) for n in range(1, 4)]
    assert plan([card("a")], wants) == [Start(1, ("a",)), Join(2, "a")]


def test_an_idle_worker_of_another_model_gives_way_only_when_nothing_else_fits() -> None:
    idle = busy("a", "other", shares=0, idle=True)
    assert plan([idle, card("b", 20)], [Want(1, "m", 5)]) == [Start(1, ("b",))]
    assert plan([idle], [Want(1, "m", 5)]) == [Start(1, ("a",))]
    assert plan([busy("a", "other")], [Want(1, "m", 5)]) == []


def test_a_warm_worker_of_the_same_model_is_used_before_a_free_card() -> None:
    assert plan([card("b"), busy("a", "m", shares=0, idle=True)], [Want(1, "m", 5)]) == [Join(1, "a")]


def test_a_borrower_of_two_cards_waits_for_both_and_keeps_the_free_one() -> None:
    loan = Want(1, None, 0, cards=2)
    assert plan([card("a"), busy("b", "m")], [loan, Want(2, "m", 5)]) == []
    assert plan([card("a"), card("b")], [loan]) == [Start(1, ("a", "b"))]


def test_idle_workers_give_way_to_a_borrower_of_several_cards_too() -> None:
    loan = Want(1, None, 0, cards=2)
    assert plan([busy("a", "m", shares=0, idle=True), card("b", 20)], [loan]) == [Start(1, ("b", "a"))]
    assert plan([busy("a", "m"), card("b", 20)], [loan]) == []


def test_a_model_s_later_waiters_do_not_pass_its_first() -> None:
    # The first wants a label that no free card has; the second, of the same model, must not slip through.
    first, second = Want(1, "m", 5, frozenset({"x"})), Want(2, "m", 5)
    assert plan([card("a")], [first, second]) == []


models = st.sampled_from(["a", "b", "c"])


@st.composite
def snapshots(draw: st.DrawFn) -> tuple[list[CardView], list[Want], set[tuple[str, str]]]:
    sizes = {name: draw(st.integers(1, 20)) for name in "abc"}
    slots = {name: draw(st.integers(1, 3)) for name in "abc"}
    cards = []
    for number in range(draw(st.integers(0, 4))):
        room = draw(st.sampled_from(list(Room)))
        model = draw(models) if room is Room.WORKER else None
        shares = draw(st.integers(0, 3)) if room is Room.WORKER else 0
        accepting = draw(st.booleans()) if room is Room.WORKER else False
        cards.append(
            CardView(f"s{number}", draw(st.integers(1, 20)), frozenset(), room, model, shares, accepting, accepting and shares == 0)
        )
    wants = []
    for number in range(draw(st.integers(0, 6))):
        name = draw(models)
        wants.append(Want(number, name, sizes[name], parallel=slots[name]))
    backing = draw(st.sets(st.tuples(models, st.sampled_from(["s0", "s1", "s2", "s3"])), max_size=4))
    return cards, wants, backing


@given(snapshots())
def test_every_plan_is_possible(snapshot: tuple[list[CardView], list[Want], set[tuple[str, str]]]) -> None:
    cards, wants, backing = snapshot
    by_slot, by_id = {c.slot: c for c in cards}, {w.id: w for w in wants}
    actions = plan(cards, wants, backing)
    assert len({a.waiter for a in actions}) == len(actions)
    claimed: dict[str, str | None] = {}
    shares = {c.slot: c.shares for c in cards}
    for action in actions:
        want = by_id[action.waiter]
        slots = action.slots if isinstance(action, Start) else (action.slot,)
        for slot in slots:
            assert fits(by_slot[slot], want)
            if isinstance(action, Join):
                assert claimed.get(slot, by_slot[slot].model) == want.model
                shares[slot] += 1
                assert shares[slot] <= want.parallel
            else:
                assert slot not in claimed, "a card is claimed once"
                assert may_use(by_slot[slot], want, backing)
                assert by_slot[slot].room in (Room.FREE, Room.LEAVING) or by_slot[slot].idle
                claimed[slot] = want.model
                shares[slot] = 1


@given(snapshots())
def test_nothing_waits_while_a_fitting_card_is_free(snapshot: tuple[list[CardView], list[Want], set[tuple[str, str]]]) -> None:
    cards, wants, backing = snapshot
    actions = plan(cards, wants, backing)
    used = {slot for a in actions for slot in (a.slots if isinstance(a, Start) else (a.slot,))}
    served = {a.waiter for a in actions}
    for want in wants:
        if want.id not in served:
            assert not [c for c in cards if c.room in (Room.FREE, Room.LEAVING) and c.slot not in used and may_use(c, want, backing)]


@given(snapshots())
def test_a_model_s_requests_are_served_in_their_order(snapshot: tuple[list[CardView], list[Want], set[tuple[str, str]]]) -> None:
    cards, wants, backing = snapshot
    served = {a.waiter for a in plan(cards, wants, backing)}
    for name in "abc":
        mine = [want.id in served for want in wants if want.model == name]
        assert mine == sorted(mine, reverse=True)


@given(snapshots())
def test_no_model_is_passed_on_a_card_that_it_has_waited_longer_for(
    snapshot: tuple[list[CardView], list[Want], set[tuple[str, str]]],
) -> None:
    """With this a stream of another model's requests starves nobody: whatever becomes free on a fitting card is the oldest waiter's."""
    cards, wants, backing = snapshot
    by_slot, by_id = {c.slot: c for c in cards}, {w.id: w for w in wants}
    actions = plan(cards, wants, backing)
    served = {a.waiter for a in actions}
    for action in actions:
        taken = by_id[action.waiter]
        for slot in action.slots if isinstance(action, Start) else (action.slot,):
            older = [w for w in wants if w.id < taken.id and w.id not in served and w.model != taken.model]
            assert not [w for w in older if may_use(by_slot[slot], w, backing)], (action, older)


@given(st.data())
def test_a_waiter_is_served_within_the_time_of_what_ran_before_it_however_many_requests_of_another_model_stream_in(
    data: st.DataObject,
) -> None:
    parallel, count = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    running = {f"s{n}": data.draw(st.integers(1, parallel)) for n in range(count)}
    stream = itertools.count(1)
    waiting = [Want(0, "rare", 5)]
    for _ in range(sum(running.values()) + 1):
        waiting.append(Want(next(stream), "busy", 5, parallel=parallel))
        cards = [busy(slot, "busy", shares=shares, idle=not shares) for slot, shares in running.items()]
        if actions := plan(cards, waiting):
            assert actions[0].waiter == 0, "a later request of the other model went first"
            return
        slot = data.draw(st.sampled_from([slot for slot, shares in running.items() if shares]))
        running[slot] -= 1
    raise AssertionError("what ran before has ended and the older waiter still waits")


def test_the_idle_worker_that_a_borrower_of_several_cards_waits_beside_is_not_taken_by_a_younger_request() -> None:
    loan, younger = Want(1, None, 1, cards=2), Want(2, "m", 5, parallel=4)
    assert plan([busy("a", "m", shares=0, idle=True), busy("b", "n")], [loan, younger]) == []


def test_a_request_never_ends_its_own_model_s_idle_worker_to_load_it_again() -> None:
    large, small = Want(1, None, 80), Want(2, None, 5)  # the small loan stands behind the large one
    assert plan([busy("a", "m", shares=0, idle=True), card("c", 80, room=Room.BUSY)], [large, small, Want(3, "m", 5)]) == [Join(3, "a")]
