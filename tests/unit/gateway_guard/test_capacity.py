from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from gateway_guard.capacity import Capacity
from gateway_guard.health import Health
from gateway_guard.routing import Standing, standing

from gateway_guard import capacity
from tests.support.pool_double import TOKEN, PoolDouble


@pytest_asyncio.fixture
async def pool() -> AsyncIterator[PoolDouble]:
    double = PoolDouble(cards=[12, 24], models={"t3-smart": 8, "t3-plan": 20})
    await double.start()
    yield double
    await double.stop()


async def known(source: Capacity, alias: str, wanted: Standing) -> None:
    async with asyncio.timeout(5):
        while standing(source.candidate("gpu-a", alias)) != wanted:  # noqa: ASYNC110  # the product has no signal for it
            await asyncio.sleep(0.01)


async def test_before_the_first_answer_a_host_is_unknown_and_then_its_cards_are_counted(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    assert standing(source.candidate("gpu-a", "t3-smart")) is Standing.UNKNOWN
    source.start()
    await known(source, "t3-smart", Standing.FREE)
    assert standing(source.candidate("gpu-a", "t3-plan")) is Standing.FREE
    await source.stop()


async def test_a_choice_in_flight_takes_its_card_until_the_pool_shows_it(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    source.start()
    await known(source, "t3-plan", Standing.FREE)
    source.sent("gpu-a", "t3-plan")
    assert standing(source.candidate("gpu-a", "t3-plan")) is Standing.BUSY
    assert standing(source.candidate("gpu-a", "t3-smart")) is Standing.FREE
    await known(source, "t3-plan", Standing.FREE)  # the request never came: the pool's word counts
    await source.stop()


async def test_a_pool_is_asked_at_most_four_times_a_second(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    asked: list[float] = []
    learn = source._learn

    def count(*arguments: Any) -> None:
        asked.append(time.monotonic())
        learn(*arguments)

    source._learn = count  # type: ignore[method-assign]
    source.start()
    for _ in range(100):
        source.candidate("gpu-a", "t3-smart")
        source.sent("gpu-a", "t3-smart")
        await asyncio.sleep(0.01)
    await source.stop()
    assert 2 <= len(asked) <= 6


async def test_a_pool_that_is_gone_backs_off_and_comes_back_by_itself(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    source.start()
    await known(source, "t3-smart", Standing.FREE)
    port = pool.port
    await pool.stop()
    await known(source, "t3-smart", Standing.FAILING)
    await pool.start(port)
    await known(source, "t3-smart", Standing.FREE)
    await source.stop()


async def test_a_pool_that_answers_nonsense_is_unknown(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    source.start()
    await known(source, "t3-smart", Standing.FREE)
    pool.capacity_works = False
    await known(source, "t3-smart", Standing.UNKNOWN)
    await source.stop()


async def test_a_stale_answer_is_no_answer(pool: PoolDouble, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    source.start()
    await known(source, "t3-smart", Standing.FREE)
    await source.stop()
    monkeypatch.setattr(capacity, "STALE_S", 0.0)
    assert standing(source.candidate("gpu-a", "t3-smart")) is Standing.UNKNOWN


async def test_a_refusal_for_want_of_a_card_corrects_the_last_answer(pool: PoolDouble) -> None:
    source = Capacity({"gpu-a": pool.url}, TOKEN, Health())
    source.start()
    await known(source, "t3-smart", Standing.FREE)
    await source.stop()
    source.took_none("gpu-a", "t3-smart")
    assert standing(source.candidate("gpu-a", "t3-smart")) is Standing.BUSY


@pytest.mark.parametrize("document", [None, [], {}, {"models": {"x": {}}}, {"models": {"x": {"free_cards": "many"}}}, {"models": 7}])
def test_any_other_shape_is_an_error_that_the_reader_catches(document: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        capacity.parse(document)


def test_a_model_is_known_by_its_name_and_its_aliases() -> None:
    found = capacity.parse(
        {
            "draining": True,
            "queue": 2,
            "models": {"m": {"aliases": ["t3-smart"], "free_cards": 1, "waiting": 1, "load_s_p50": None, "failing": True}},
        }
    )
    assert (found.draining, found.queue) == (True, 2)
    assert found.models["m"] == found.models["t3-smart"]
    assert found.models["m"].failing
