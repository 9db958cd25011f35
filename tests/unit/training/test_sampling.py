"""Windows of negatives, positives in turn, order of each epoch (docs/methods/hard-negatives.md)."""

from hypothesis import given
from hypothesis import strategies as st

from drtk.training.sampling import EpochDataset, derive_step_seed, sample_negatives, shuffle_epoch

SEVEN = list("abcdefg")
WINDOW = {"method": "window", "key": "q1"}


def test_the_window_slides_by_its_own_width_and_wraps():
    # offset = (epoch + 0) * 3 mod 7: 0, 3, 6, 2
    windows = ["".join(sample_negatives(SEVEN, 3, epoch=epoch, seed=0, **WINDOW)) for epoch in range(4)]
    assert windows == ["abc", "def", "gab", "cde"]
    assert sample_negatives(SEVEN, 3, epoch=0, seed=2, **WINDOW) == ["g", "a", "b"]  # (0 + 2) * 3 mod 7 = 6
    assert sample_negatives(["a", "b"], 5, epoch=1, seed=0, **WINDOW) == [*"babab"]  # (1 + 0) * 5 mod 2 = 1
    assert sample_negatives([], 0, epoch=3, seed=1, **WINDOW) == []


def test_short_lists_are_sampled_with_replacement_as_in_tevatron():
    given = {"method": "replacement", "seed": 0, "key": "q1"}
    assert sample_negatives(SEVEN, 3, epoch=1, **given) == ["d", "e", "f"]  # long enough: the window
    actual = [sample_negatives(["a", "b"], 6, epoch=epoch, **given) for epoch in range(20)]
    assert all(len(each) == 6 and set(each) <= {"a", "b"} for each in actual)
    assert len({tuple(each) for each in actual}) > 10  # of 64; a window would have two
    assert actual[3] == sample_negatives(["a", "b"], 6, epoch=3, **given)
    assert actual[3] != sample_negatives(["a", "b"], 6, epoch=3, **given | {"key": "q2"})


def test_each_epoch_shuffles_a_list_into_its_own_order():
    given = {"method": "shuffle", "seed": 0, "key": "q1"}
    assert sorted(sample_negatives(SEVEN, 7, epoch=4, **given)) == SEVEN
    firsts = [sample_negatives(SEVEN, 1, epoch=epoch, **given)[0] for epoch in range(60)]
    assert set(firsts) == set(SEVEN)
    long = sample_negatives(SEVEN, 9, epoch=0, **given)
    assert long[7:] == long[:2]


@given(length=st.integers(1, 40), count=st.integers(1, 10), seed=st.integers(0, 1000))
def test_all_negatives_are_used_in_turn(length: int, count: int, seed: int):
    windows = [sample_negatives(range(length), count, epoch=epoch, seed=seed, **WINDOW) for epoch in range(length)]
    seen = [item for window in windows for item in window]
    assert set(seen) == set(range(length))  # `length` windows cover the list `count` times
    assert {seen.count(item) for item in range(length)} == {count}


def test_the_order_depends_on_epoch_and_seed():
    first, again, next_epoch, other = (
        shuffle_epoch(50, epoch=epoch, seed=seed).tolist() for epoch, seed in ((0, 1), (0, 1), (1, 1), (0, 2))
    )
    assert first == again != next_epoch != other != first
    assert sorted(first) == list(range(50))
    expected = [*shuffle_epoch(5, epoch=0, seed=1)[:4], *shuffle_epoch(5, epoch=1, seed=1)[:4]]  # 1 of 5 fills no batch
    assert [*map(EpochDataset(range(5), batch=2, steps=4, seed=1).__getitem__, range(8))] == expected


def test_seeds_of_steps_differ_by_step_rank_and_seed_and_fit_torch():
    seeds = {derive_step_seed(seed, step, rank) for seed in range(3) for step in range(50) for rank in range(4)}
    assert len(seeds) == 600
    assert all(0 <= seed < 2**63 for seed in seeds)
