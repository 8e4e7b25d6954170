"""What becomes of documents that have changed here, there, or on both sides."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.config.documents import Override, OverrideDocument, StateDocument
from forebay.console.reconcile import Step, fault_of, merged, step, version_of

NOW_S = 1_800_000_000.0
NONE = OverrideDocument(epoch=0, seq=0, schema=1)


def entry(id: str, ends_s: float = NOW_S + 60) -> Override:
    return Override(id=id, kind="drain", target="h:1", expires_at=ends_s, by="ann", reason="r", created_at=NOW_S)


def document(epoch: int, seq: int, ids: str = "") -> OverrideDocument:
    return OverrideDocument(epoch=epoch, seq=seq, schema=1, entries=tuple(entry(id) for id in ids))


def decided(base: OverrideDocument, local: OverrideDocument, remote: OverrideDocument | None) -> Step:
    return step(base, local, remote, (0, 0), NOW_S)


def test_nothing_is_published_before_there_is_something() -> None:
    assert decided(NONE, NONE, None) == Step()
    assert decided(NONE, document(5, 1, "a"), None) == Step(publish=document(5, 1, "a"))


def test_the_newer_one_is_taken_and_an_older_one_never() -> None:
    old, new = document(5, 1, "a"), document(5, 2, "ab")
    assert decided(old, old, new) == Step(write=new)
    assert decided(new, new, old) == Step(publish=new)
    assert decided(old, new, old) == Step(publish=new)
    assert decided(new, new, new) == Step()


def test_what_the_data_plane_would_refuse_gets_a_newer_version() -> None:
    old, new = document(5, 1, "a"), document(5, 2, "ab")
    made = step(old, old, new, (6, 3), NOW_S)
    assert made.write is not None and made.write == made.publish
    assert (version_of(made.write), [e.id for e in made.write.entries]) == ((6, 4), ["a", "b"])


def test_changes_of_both_sides_are_put_together() -> None:
    base, local, remote = document(5, 1, "ab"), document(5, 2, "ac"), document(5, 2, "abd")
    made = decided(base, local, remote)
    assert made.write is not None and made.write == made.publish
    assert ([e.id for e in made.write.entries], version_of(made.write)) == (["a", "d", "c"], (5, 3))


def test_what_has_ended_does_not_come_back() -> None:
    remote = OverrideDocument(epoch=5, seq=2, schema=1, entries=(entry("a", NOW_S - 1), entry("b")))
    assert [e.id for e in merged(NONE, document(5, 1), remote, NOW_S)] == ["b"]


changes = st.lists(
    st.tuples(st.sampled_from("AB"), st.sampled_from(["add", "end", "sync", "lose"]), st.integers(0, 9)), max_size=60
)


class Nodes:
    """Two nodes and a store, and what people did to them."""

    def __init__(self) -> None:
        self.local = {"A": NONE, "B": NONE}
        self.base = {"A": NONE, "B": NONE}
        self.store: OverrideDocument | None = None
        self.made: set[str] = set()
        self.ended: set[str] = set()

    def sync(self, name: str) -> None:
        local = self.local[name]
        done = step(self.base[name], local, self.store, version_of(local), NOW_S)
        for new in (done.write, done.publish):
            assert new is None or version_of(new) >= version_of(local)
        self.local[name] = done.write or local
        self.store = done.publish or self.store
        self.base[name] = self.local[name]

    def change(self, name: str, adds: str, which: int) -> None:
        """Add an entry of that id, or end the one in that place when there is no id."""
        held = self.local[name]
        entries = held.entries
        if adds:
            self.made.add(adds)
            entries = (*entries, entry(adds))
        elif entries:
            gone = entries[which % len(entries)].id
            self.ended.add(gone)
            entries = tuple(e for e in entries if e.id != gone)
        self.local[name] = OverrideDocument(epoch=max(held.epoch, 1), seq=held.seq + 1, schema=1, entries=entries)


@given(changes)
def test_two_nodes_agree_in_the_end_and_versions_only_grow(run: list[tuple[str, str, int]]) -> None:
    nodes = Nodes()
    for number, (name, what, which) in enumerate(run):
        if what == "sync":
            nodes.sync(name)
        elif what == "lose":
            nodes.store = None
        else:
            nodes.change(name, f"{number}" if what == "add" else "", which)
    for name in "ABAB":
        nodes.sync(name)
    assert nodes.local["A"] == nodes.local["B"] == (nodes.store or NONE)
    if not any(what == "lose" for _, what, _ in run):
        assert {e.id for e in nodes.local["A"].entries} == nodes.made - nodes.ended


def test_a_version_or_an_end_from_the_future_is_refused() -> None:
    assert fault_of(document(int(NOW_S), 5, "ab"), 604_800, NOW_S) == ""
    assert "future" in fault_of(document(2**53, 5), 604_800, NOW_S)
    assert "future" in fault_of(StateDocument(epoch=1, seq=2**53, schema=1), 604_800, NOW_S)
    endless = OverrideDocument(epoch=1, seq=1, schema=1, entries=(entry("a", 2**52),))
    assert "week" in fault_of(endless, 604_800, NOW_S)
    assert "same id" in fault_of(document(1, 1, "aa"), 604_800, NOW_S)
