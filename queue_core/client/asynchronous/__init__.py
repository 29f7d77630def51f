"""The verbs as coroutines, for programs with an event loop: the plain client's calls, in threads of its own. ADR 32."""
