"""Texts of four kinds, made from word lists: prose, Chinese prose, code and JSON documents."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

SHORTEST_BYTES = 50
LONGEST_BYTES = 8000

_COMMON = (
    "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
    "which one you were all her she there would their we him been has when who will no more if out so up said "
    "what its about than into them can only other time new some could these two may first then do any like my now "
    "over such our man me even most made after also did many off before must well back through years much where "
    "your way down should because"
).split()
_RARER = (
    "harbour lantern merchant granite threshold committee particular development government understanding "
    "language mountain weather afternoon philosophy electricity temperature imagination responsibility "
    "neighbourhood river manuscript telescope laboratory experiment hypothesis photograph archive customer "
    "delivery invoice warehouse engineer velocity orchestra symphony melancholy precipitation agriculture "
    "parliament referendum constitution biodiversity chlorophyll mitochondria anticipated notwithstanding "
    "bewildered crystallise quarrelsome shimmering"
).split()
_NAMES = "Margaret Thornbury Leipzig Okonkwo Tallinn Fernandez Aberdeen Kowalski Yokohama Ibsen".split()
_CHINESE = (
    "我们 他们 今天 明天 因为 所以 但是 可以 没有 什么 时候 问题 工作 学习 城市 经济 发展 "
    "社会 政府 公司 学生 老师 朋友 历史 文化 科学 技术 研究 数据 模型 系统 服务 网络 计算 "
    "语言 世界 国家 人民 生活 环境 天气 春天 山水 火车 飞机 医院 的 了 是 在 和 有 就 "
    "不 也 都 这 那 很 会 要 到 说 去 看 想 葡萄 蝴蝶 琵琶 憔悴 踌躇 徘徊 镌刻 氤氲 "
    "苍穹 邂逅"
).split()
_PARTS = (
    "user name count index buffer request response token cache key value node tree path file size config parser "
    "state event queue stream handler socket limit offset result error total price order item matrix vector "
    "weight layer batch"
).split()
_TYPES = "int str bytes float bool list[str] dict[str, int]".split()


def prose(random: Random, size_bytes: int) -> str:
    """English sentences in paragraphs, with names, numbers and a list now and then."""
    return _grown(_ended_sentence, random, size_bytes)


def chinese(random: Random, size_bytes: int) -> str:
    """Chinese sentences, with a number or a Latin word now and then."""
    return _grown(_chinese_sentence, random, size_bytes)


def code(random: Random, size_bytes: int) -> str:
    """Functions and classes in the manner of Python."""
    return _grown(_function, random, size_bytes)


def document(random: Random, size_bytes: int) -> str:
    """A JSON array of records, indented or not."""
    records: list[object] = []
    length = 2
    while length < size_bytes:
        records.append(_record(random))
        length += len(json.dumps(records[-1]))
    return json.dumps(records, indent=random.choice((None, None, 2)), ensure_ascii=False)


KINDS: dict[str, Callable[[Random, int], str]] = {
    "prose": prose,
    "chinese": chinese,
    "code": code,
    "json": document,
}


class Sample(NamedTuple):
    """One chat: its kind and its messages."""

    kind: str
    messages: list[dict[str, str]]


def chats(random: Random, kinds: tuple[str, ...] = tuple(KINDS)) -> Iterator[Sample]:
    """Chats of the kinds in turn, without end; lengths are spread evenly over their logarithm."""
    while True:
        for kind in kinds:
            size_bytes = int(SHORTEST_BYTES * (LONGEST_BYTES / SHORTEST_BYTES) ** random.random())
            text = KINDS[kind](random, size_bytes)
            messages = [{"role": "user", "content": text}]
            if random.random() < 0.3:
                messages.insert(0, {"role": "system", "content": prose(random, 80)})
            yield Sample(kind, messages)


def _grown(piece: Callable[[Random], str], random: Random, size_bytes: int) -> str:
    text = ""
    while len(text.encode()) < size_bytes:
        text += piece(random)
    return text


def _word(random: Random) -> str:
    return random.choice(_COMMON if random.random() < 0.65 else _RARER)


def _sentence(random: Random) -> str:
    words = [_word(random) for _ in range(random.randint(5, 22))]
    for at in range(len(words)):
        draw = random.random()
        if draw < 0.03:
            words[at] = random.choice(_NAMES)
        elif draw < 0.05:
            words[at] = str(random.randint(2, 2030))
        elif draw < 0.13:
            words[at] += ","
    return words[0].capitalize() + " " + " ".join(words[1:]) + random.choice(".....?!")


def _ended_sentence(random: Random) -> str:
    return _sentence(random) + random.choice((" ", " ", " ", "\n\n", "\n- "))


def _chinese_sentence(random: Random) -> str:
    words = [random.choice(_CHINESE) for _ in range(random.randint(4, 18))]
    for at in range(len(words)):
        draw = random.random()
        if draw < 0.03:
            words[at] = str(random.randint(2, 2030))
        elif draw < 0.05:
            words[at] = random.choice(_PARTS)
        elif draw < 0.15:
            words[at] += "，"
    return "".join(words) + random.choice(("。", "。", "！", "？", "。\n"))


def _identifier(random: Random) -> str:
    parts = random.choices(_PARTS, k=random.choice((1, 1, 2, 2, 3)))
    return "_".join(parts) if random.random() < 0.75 else parts[0] + "".join(part.capitalize() for part in parts[1:])


def _function(random: Random) -> str:
    names = [_identifier(random) for _ in range(4)]
    given = ", ".join(f"{name}: {random.choice(_TYPES)}" for name in names[: random.randint(1, 3)])
    lines = [f"def {_identifier(random)}({given}) -> {random.choice(_TYPES)}:"]
    if random.random() < 0.5:
        lines.append(f'    """{_sentence(random)}"""')
    for _ in range(random.randint(2, 9)):
        left, right = random.choice(names), random.choice(names)
        number = random.choice((0, 1, 2, 16, 255, 1024, 3600))
        lines += random.choice(
            (
                [f"    {left} = {right}.{_identifier(random)}({left}, {number})"],
                [f"    if {left} is None or len({right}) > {number}:", f"        return {_identifier(random)}"],
                [f"    for {left} in {right}:", f'        self.{_identifier(random)}[{left}] += "{right}"'],
                [f"    # {_sentence(random)}"],
                [f"    {left} = [{right} * {number} for _ in range({number})]"],
            )
        )
    return "\n".join(lines) + "\n\n\n"


def _record(random: Random) -> dict[str, object]:
    record: dict[str, object] = {"id": random.randint(1, 10**6), "uuid": f"{random.getrandbits(64):016x}"}
    for _ in range(random.randint(2, 8)):
        record[_identifier(random)] = random.choice(
            (
                random.randint(0, 10**5),
                round(random.uniform(-100, 100), 3),
                random.random() < 0.5,
                None,
                _word(random),
                f"2025-{random.randint(1, 12):02}-{random.randint(1, 28):02}T{random.randint(0, 23):02}:15:00Z",
                [random.randint(0, 99) for _ in range(random.randint(1, 6))],
                {_identifier(random): random.choice(_NAMES), _identifier(random): random.randint(0, 9)},
            )
        )
    return record
