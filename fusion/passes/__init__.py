"""Graph rewriting: views, recognisers, lookup specs, planners and emitters.

Nothing here runs TensorFlow: the passes read and write protocol buffers only, so they work the same
inside TensorFlow's own optimizer, on files, and in tools.
"""
