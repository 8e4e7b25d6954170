"""The words of the status page in each language."""

from collections.abc import Mapping
from types import MappingProxyType

ENGLISH = "en"

TEXTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        ENGLISH: MappingProxyType(
            {
                "ask_token": "Admin token (file admin-token of the data folder)",
                "open": "Open",
                "replicas": "Replicas",
                "overrides": "Overrides",
                "target": "host:port of the replica",
                "seconds": "seconds until it ends",
                "reason": "reason",
                "by": "your name",
                "drain": "Drain",
                "end": "End",
                "timeline": "Timeline",
                "details": "Details",
                "yes": "yes",
                "no": "no",
                "wrong_token": "This is not the admin token.",
                "reachable": "the data plane answers",
                "unreachable": "the data plane does not answer; what follows is old: ",
                "needs_script": "This page needs JavaScript. The same is at /api/status.",
            }
        ),
        "zh": MappingProxyType(
            {
                "ask_token": "管理令牌（数据目录中的 admin-token 文件）",
                "open": "打开",
                "replicas": "副本",
                "overrides": "临时变更",
                "target": "副本的 host:port",
                "seconds": "有效期（秒）",
                "reason": "原因",
                "by": "您的姓名",
                "drain": "摘除",
                "end": "结束",
                "timeline": "操作记录",
                "details": "详情",
                "yes": "是",
                "no": "否",
                "wrong_token": "管理令牌不正确。",
                "reachable": "数据面运行正常",
                "unreachable": "数据面没有响应，以下为旧数据：",
                "needs_script": "此页面需要 JavaScript。相同内容见 /api/status。",
            }
        ),
    }
)
