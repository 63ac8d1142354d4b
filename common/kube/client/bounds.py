"""What an API server may answer. Tenants run API servers, and a compromised one lies: every bound on it is here.

| of | at most |
|---|---|
| one head, with all that comes before it | 64 KiB, in it 8 interim answers (1xx), 128 fields of 8 KiB |
| what is no body: framing, extensions, trailers | as much as the body, and 1 MiB |
| one object, one event of a watch, and each other answer | 16 MiB |
| one page of a list | 8 MiB, and as many objects as were asked for |
| one object | 250,000 values (names and texts in what is skipped count as well) |
| one list | 500,000 objects, of which 1,000 cannot be read, and 100 empty pages |
| what nobody asked for: compression, another protocol, a second answer | nothing |

Redirects are not followed. `Connection` bounds the time and the number of connections. Whoever goes beyond loses the
connection, and the answer is malformed.
"""

MAX_HEAD = 64 * 1024
MAX_INTERIM = 8
MAX_OVERHEAD = 1024 * 1024
MAX_BODY = 16 * 1024 * 1024  # etcd holds objects of at most 1.5 MiB by default
MAX_PAGE = 8 * 1024 * 1024
MAX_ITEMS = 500_000
MAX_BROKEN = 1000
MAX_EMPTY_PAGES = 100
