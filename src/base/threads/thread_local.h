#pragma once
// Thread-local variables that code compiled for executables may have in the shared library as well:
// their offset is found through a table, not written into the code.

#define BRRR_THREAD_LOCAL [[gnu::tls_model("initial-exec")]] thread_local
