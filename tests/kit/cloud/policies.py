"""A stand-in for IAM's policy simulator, which moto does not play: principals with the actions that
they may do where.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from launch.platforms.sagemaker.service_model import violations


class Policies:
    """``allowed``: ARN of a principal -> patterns of (action, resource).

    ``denied``: the same, and stronger. ``asked``: the requests.
    """

    def __init__(self, allowed: dict[str, list[tuple[str, str]]]) -> None:
        self.allowed = allowed
        self.denied: dict[str, list[tuple[str, str]]] = {}
        # context keys that the policies ask for and the request does not give
        self.missing: list[str] = []
        self.asked: list[dict[str, Any]] = []

    def simulate_principal_policy(self, **request: Any) -> dict[str, Any]:
        """What boto3's method of this name gives back."""
        assert violations(request, "SimulatePrincipalPolicy", "iam") == []
        self.asked.append(request)
        found = [
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": self._decide(request["PolicySourceArn"], action, resource),
                "MissingContextValues": self.missing,
            }
            for action in request["ActionNames"]
            for resource in request.get("ResourceArns", ["*"])
        ]
        return {"EvaluationResults": found, "IsTruncated": False}

    def _decide(self, who: str, action: str, resource: str) -> str:
        def any_of(rules: Sequence[tuple[str, str]]) -> bool:
            return any(
                fnmatchcase(action, one) and fnmatchcase(resource, where) for one, where in rules
            )

        if any_of(self.denied.get(who, [])):
            return "explicitDeny"
        return "allowed" if any_of(self.allowed.get(who, [])) else "implicitDeny"
