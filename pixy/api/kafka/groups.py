"""Members of consumer groups of the classic protocol: FindCoordinator, JoinGroup, SyncGroup,
Heartbeat and LeaveGroup.
"""

from collections.abc import Mapping

from pixy.aio.steps import in_steps
from pixy.api.kafka.brokers import Brokers, host_and_port
from pixy.api.kafka.codes import INVALID_REQUEST, TRANSACTIONAL_ID_AUTHORIZATION_FAILED
from pixy.backend import ClassicGroups
from pixy.classic_groups import GroupCode, GroupJoin, GroupSync, LeavingMember, MemberProtocol
from pixy.client_address import client_address
from pixy.kafka_messages.generated.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from pixy.kafka_messages.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from pixy.kafka_messages.generated.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from pixy.kafka_messages.generated.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberResponse,
)
from pixy.kafka_messages.generated.sync_group import SyncGroupRequest, SyncGroupResponse
from pixy.wire import WireExchange

_GROUP, _TRANSACTION = 0, 1
"""Types of coordinators."""
_KEYS_FROM = 4
"""FindCoordinator: several groups at a time."""
_REBALANCE_TIMEOUT_FROM, _MEMBER_ID_REQUIRED_FROM, _SKIPS_ASSIGNMENT_FROM = 1, 4, 9
_NO_PROTOCOL_FROM = 7
"""JoinGroup: the answer may name no protocol."""
_MEMBERS_FROM = 3
"""LeaveGroup: several members at a time."""


class GroupsApi:
    """Handlers of members.

    Args:
        groups: of the cluster.
        brokers: of the cluster.
    """

    def __init__(self, groups: ClassicGroups, brokers: Brokers) -> None:
        self._groups = groups
        self._brokers = brokers

    async def find_coordinator(
        self, exchange: WireExchange, request: FindCoordinatorRequest
    ) -> FindCoordinatorResponse:
        """Name the nodes that lead the state groups of consumer groups."""
        await self._brokers.find()
        addresses = {each.node_id: each.address for each in self._brokers.all() if each.address}
        if exchange.version >= _KEYS_FROM:
            found = [
                self._coordinator(key, request.key_type, addresses)
                async for key in in_steps(request.coordinator_keys)
            ]
            return FindCoordinatorResponse(coordinators=found)
        of = self._coordinator(request.key, request.key_type, addresses)
        return FindCoordinatorResponse(
            error_code=of.error_code,
            error_message=of.error_message,
            node_id=of.node_id,
            host=of.host,
            port=of.port,
        )

    def _coordinator(self, key: str, key_type: int, addresses: Mapping[int, str]) -> Coordinator:
        if key_type != _GROUP:
            # Any code that passes would have clients ask for ever.
            code = TRANSACTIONAL_ID_AUTHORIZATION_FAILED if key_type == _TRANSACTION else INVALID_REQUEST
            reason = "there are coordinators of consumer groups alone: no transactions, no share groups"
            return Coordinator(key, -1, "", -1, code, reason)
        if not key:
            return Coordinator(key, -1, "", -1, GroupCode.INVALID_GROUP_ID, None)
        node_id = self._groups.coordinator_of(key)
        if node_id is None or node_id not in addresses:
            return Coordinator(key, -1, "", -1, GroupCode.COORDINATOR_NOT_AVAILABLE, None)
        return Coordinator(key, node_id, *host_and_port(addresses[node_id]), GroupCode.NONE, None)

    async def join(self, exchange: WireExchange, request: JoinGroupRequest) -> JoinGroupResponse:
        """Join a group, once its rebalance is over."""
        version = exchange.version
        join = GroupJoin(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=exchange.client_id,
            client_host=f"/{client_address(exchange.peer)}",
            protocol_type=request.protocol_type,
            protocols=[MemberProtocol(each.name, each.metadata) for each in request.protocols],
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=(
                request.rebalance_timeout_ms if version >= _REBALANCE_TIMEOUT_FROM else None
            ),
            takes_member_id=version >= _MEMBER_ID_REQUIRED_FROM,
            skips_assignment=version >= _SKIPS_ASSIGNMENT_FROM,
        )
        answer = await self._groups.join(request.group_id, join)
        return JoinGroupResponse(
            error_code=answer.code,
            generation_id=answer.generation,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol if version >= _NO_PROTOCOL_FROM else answer.protocol or "",
            leader=answer.leader,
            skip_assignment=answer.skip_assignment,
            member_id=answer.member_id,
            members=[JoinGroupResponseMember(*each) for each in answer.members],
        )

    async def sync(self, _: WireExchange, request: SyncGroupRequest) -> SyncGroupResponse:
        """Bring or get the assignment of a generation."""
        sync = GroupSync(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            generation=request.generation_id,
            assignments=[(each.member_id, each.assignment) for each in request.assignments],
            protocol_type=request.protocol_type,
            protocol=request.protocol_name,
        )
        answer = await self._groups.sync(request.group_id, sync)
        return SyncGroupResponse(
            error_code=answer.code,
            protocol_type=answer.protocol_type,
            protocol_name=answer.protocol,
            assignment=answer.assignment,
        )

    async def heartbeat(self, _: WireExchange, request: HeartbeatRequest) -> HeartbeatResponse:
        """Keep a session."""
        code = await self._groups.heartbeat(
            request.group_id, request.member_id, request.group_instance_id, request.generation_id
        )
        return HeartbeatResponse(error_code=code)

    async def leave(self, exchange: WireExchange, request: LeaveGroupRequest) -> LeaveGroupResponse:
        """Leave a group."""
        if exchange.version < _MEMBERS_FROM:
            code, codes = await self._groups.leave(request.group_id, [LeavingMember(request.member_id, None)])
            return LeaveGroupResponse(error_code=code or codes[0])
        leaving = [LeavingMember(each.member_id, each.group_instance_id) for each in request.members]
        code, codes = await self._groups.leave(request.group_id, leaving)
        if code:
            return LeaveGroupResponse(error_code=code)
        members = [MemberResponse(*each, code) for each, code in zip(leaving, codes, strict=True)]
        return LeaveGroupResponse(members=members)
