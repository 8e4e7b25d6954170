"""The table of endpoints."""

from forebay.wire.endpoints import BY_PATH, ENDPOINTS


def test_every_path_means_one_endpoint() -> None:
    paths = [path for endpoint in ENDPOINTS for path in endpoint.paths]
    assert len(paths) == len(set(paths)) == len(BY_PATH)
    assert len({endpoint.name for endpoint in ENDPOINTS}) == len(ENDPOINTS)


def test_paths_are_plain() -> None:
    for path, endpoint in BY_PATH.items():
        assert path.startswith("/")
        assert path.isascii()
        assert not set(path) & set("?#%;. ") and "//" not in path, endpoint.name


def test_only_generation_streams() -> None:
    assert {endpoint.name for endpoint in ENDPOINTS if endpoint.streams} == {
        "chat",
        "completions",
        "responses",
        "messages",
    }
