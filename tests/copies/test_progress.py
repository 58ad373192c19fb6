from pixy.copies import CopyProgress


def test_a_copy_counts_what_has_come_of_what_its_sources_have() -> None:
    progress = CopyProgress()
    assert (progress.copied_bytes, progress.total_bytes, progress.bytes_per_second(0)) == (0, 0, 0)
    progress.begin(100, 0)
    progress.add(40, 1)
    assert (progress.copied_bytes, progress.total_bytes) == (40, 100)
    progress.begin(70, 2)  # another source, which has other segments
    assert (progress.copied_bytes, progress.total_bytes) == (40, 110)
    progress.add(80, 3)
    assert (progress.copied_bytes, progress.total_bytes) == (120, 120)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    progress = CopyProgress()
    progress.begin(10_000, 0)
    for second in range(1, 11):
        progress.add(100, second)
    assert progress.bytes_per_second(10) == 100
    for second in range(11, 21):
        progress.add(10, second)
    assert progress.bytes_per_second(20) == 10
    assert progress.bytes_per_second(30) < 10
    assert progress.bytes_per_second(10_000) == 0
