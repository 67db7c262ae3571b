//! Hosts as network namespaces with quotas and CPU accounting.
