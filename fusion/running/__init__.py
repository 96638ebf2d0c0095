"""Running graphs: functions, Sessions and Grappler, whose lookups are fused in place."""
