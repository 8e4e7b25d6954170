"""Who calls: a key becomes a tenant, a connection becomes a client address.

Enters: headers and the connection's peer. Leaves: a `Tenant`, an address. Invariants: keys are compared
as digests only and never kept, logged or passed on; a forwarded address counts only behind a proxy that
the configuration trusts.
"""
