"""The way of a request, one function a kind of request, each readable top to bottom.

`generate.generate` is the way of everything that runs a model; `utility.utility` that of the engines' own tools. Steps
take and return named records; a refusal is an ApiError; whatever is held is released in `finally`. There is no
middleware and no context bag: what a step needs stands in its arguments.
"""
