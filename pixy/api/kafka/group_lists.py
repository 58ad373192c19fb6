"""Consumer groups for operators: ListGroups, DescribeGroups and DeleteGroups.

pixy's own consumer groups are there too, with members and partitions as Kafka's consumers have
them, and the type `consumer`.
"""

from pixy.aio.steps import in_steps
from pixy.backend import ClassicGroups
from pixy.classic_groups import GroupCode
from pixy.kafka_messages.generated.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from pixy.kafka_messages.generated.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from pixy.kafka_messages.generated.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from pixy.wire import WireExchange

_NAMES_UNKNOWN_FROM = 6
"""DescribeGroups: an unknown group is an error (KIP-1043)."""
_CLASSIC, _OWN = "classic", "consumer"


class GroupListsApi:
    """Handlers for operators.

    Args:
        groups: of the cluster.
    """

    def __init__(self, groups: ClassicGroups) -> None:
        self._groups = groups

    async def list_groups(self, _: WireExchange, request: ListGroupsRequest) -> ListGroupsResponse:
        """List the groups that this node coordinates."""
        states = {each.lower() for each in request.states_filter}
        types = {each.lower() for each in request.types_filter}
        listed = []
        for each in await self._groups.list_groups():
            kind = _CLASSIC if each.is_classic else _OWN
            if (not states or each.phase.lower() in states) and (not types or kind in types):
                listed.append(ListedGroup(each.group, each.protocol_type, each.phase, kind))
        return ListGroupsResponse(groups=listed)

    async def describe(
        self, exchange: WireExchange, request: DescribeGroupsRequest
    ) -> DescribeGroupsResponse:
        """Describe groups with their members."""
        described = [
            await self._described(name, names_unknown=exchange.version >= _NAMES_UNKNOWN_FROM)
            async for name in in_steps(request.groups)
        ]
        return DescribeGroupsResponse(groups=described)

    async def _described(self, name: str, *, names_unknown: bool) -> DescribedGroup:
        group = await self._groups.describe(name)
        is_missing = names_unknown and not group.is_known
        return DescribedGroup(
            error_code=GroupCode.GROUP_ID_NOT_FOUND if is_missing else group.code,
            error_message=f"there is no group {name}" if is_missing else None,
            group_id=name,
            group_state=group.phase,
            protocol_type=group.protocol_type,
            protocol_data=group.protocol,
            members=[
                DescribedGroupMember(
                    each.member_id,
                    each.instance_id,
                    each.client_id,
                    each.client_host,
                    each.metadata,
                    each.assignment,
                )
                for each in group.members
            ],
        )

    async def delete(self, _: WireExchange, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        """Remove groups without members, and their offsets."""
        results = [
            DeletableGroupResult(name, await self._groups.delete(name))
            async for name in in_steps(request.groups_names)
        ]
        return DeleteGroupsResponse(results=results)
