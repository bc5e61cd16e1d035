"""The roster: which agents, models and toolsets there are, and who answers a request.

An agent is a frozen spec. Nothing of it lives on between turns: it is looked up for each one, and what the model
was told (instructions, tools) is kept in the log as a setup.
"""

from typing import Literal

from msgspec import Struct

from legato.domain.entries import Setup, Tool
from legato.engine import windows
from legato.engine.protocols import Model, Toolset
from legato.errors import BadConfig, UnknownModel

UnknownModelPolicy = Literal["default", "reject", "pass"]


class Agent(Struct, frozen=True):
    """Instructions, a model, toolsets, limits."""

    name: str
    model: str
    instructions: str = ""
    toolsets: tuple[str, ...] = ()
    max_steps: int = 50


class Cast(Struct, frozen=True):
    """Who answers one turn, and with what."""

    agent: Agent
    model: Model
    tools: dict[str, tuple[Tool, Toolset]]
    upstream: str | None = None  # the model that the provider is asked for, where it is not its own default

    @property
    def model_name(self) -> str:
        """The model that is asked, by the name it has here or at its provider."""
        return self.upstream or self.agent.model

    @property
    def name(self) -> str:
        """Who a client is told has answered."""
        return self.upstream or self.agent.name

    @property
    def setup(self) -> Setup:
        """What the log keeps of this cast."""
        return Setup(
            agent=self.agent.name,
            model=self.agent.model,
            instructions=self.agent.instructions,
            tools=tuple(tool for tool, _ in self.tools.values()),
        )


class Roster:
    """Everything that can answer. A request's name may be an agent's or a model's."""

    def __init__(
        self,
        *,
        models: dict[str, Model],
        toolsets: dict[str, Toolset],
        agents: dict[str, Agent],
        default: str,
        unknown: UnknownModelPolicy = "default",
        windows: dict[str, int] | None = None,
    ) -> None:
        self._windows = windows or {}
        self._models, self._toolsets, self._agents = models, toolsets, agents
        self._default, self._unknown = default, unknown
        for agent in agents.values():
            if agent.model not in models:
                raise BadConfig(f"Agent '{agent.name}' wants model '{agent.model}'; there are: {', '.join(models)}.")
            for name in agent.toolsets:
                if name not in toolsets:
                    known = ", ".join(toolsets) or "none"
                    raise BadConfig(f"Agent '{agent.name}' wants toolset '{name}'; there are: {known}.")
        if default not in agents:
            raise BadConfig(f"The default agent '{default}' is not configured; there are: {', '.join(agents)}.")

    @property
    def names(self) -> list[str]:
        """Every name that a request may use, agents first."""
        return list(dict.fromkeys([*self._agents, *self._models]))

    def cast(self, name: str | None) -> Cast:
        """Who answers to this name. A bare model is the default agent on that model."""
        default = self._agents[self._default]
        upstream: str | None = None
        if name in self._agents:
            agent = self._agents[name]
        elif name in self._models:
            agent = Agent(name, name, default.instructions, default.toolsets, default.max_steps)
        elif name is None or self._unknown == "default":
            agent = default
        elif self._unknown == "pass":
            agent, upstream = default, name
        else:
            raise UnknownModel(f"No model or agent '{name}'. There are: {', '.join(self.names)}.", param="model")
        tools = {
            tool.name: (tool, self._toolsets[set_name])
            for set_name in agent.toolsets
            for tool in self._toolsets[set_name].tools
        }
        return Cast(agent, self._models[agent.model], tools, upstream)

    def known_window(self, name: str) -> int | None:
        """How many tokens one of the names takes, where that can be told without asking anybody."""
        cast = self.cast(name)
        return self.window(cast) or windows.known(cast.model_name)

    def window(self, cast: Cast) -> int | None:
        """How many tokens the model takes, where that is configured."""
        return self._windows.get(cast.agent.model) or None
