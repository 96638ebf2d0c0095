"""The compiler pass: finds embedding lookups in graphs and rewrites them.

Each folder is a stage, which imports from those above it and never from below:

    graph       views of a GraphDef and of its functions, edits, static shapes, liveness
    analysis    what is known of values: symbolic shapes, ranges, index grids, variables
    recognise   ops -> `LookupSpec`, or a `NoMatch` that says why not and at which node
    plan        which lookups are safe to rewrite, which ops each becomes, which share one
    report      what users read
    emit        the nodes of a plan, as a `GraphEdit`
    choose      the first plan whose nodes do not wait for themselves

    FuseLookups, LowerLookups, GatherTables, FuseUpdates
                the passes, each with `apply(graph_def)`

A pass never changes the graph that it is given, knows nothing of kernels (it imports
`fusion.schema`, not `fusion.ops`), and leaves alone what it does not understand to the end.

A recogniser promises: every node whose value vanishes is listed; what it accepts, the fused op
computes to the same bits (or the spec's `is_exact` says that it rounds); whatever else it meets
is a `NoMatch` with a reason and a node. A new form of lookups is an entry of
`recognise.lookup.FORMS`; docs/architecture.md has the steps, and the traps.
"""
