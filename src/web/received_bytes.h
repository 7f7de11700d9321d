#pragma once
// How much a TCP connection has received, as the kernel counts it.

#include <cstdint>

namespace brrr::io {

/// Bytes that came in on the socket `fd` since it was connected; 0 where the kernel does not say.
int64_t received_bytes(int fd);

}  // namespace brrr::io
