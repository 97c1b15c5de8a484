"""The HTTP edge: from an ASGI scope to a way through `blazar.flow`, and from an error to an answer.

Decision: no web framework. One table of routes, one function that opens every request (trace id, host guard, preflight,
secret, route) and one place that renders every error. A framework's router and middleware were measured dearer than the
whole of that, and hide the order in which a request is refused, which here is part of the contract.
"""
