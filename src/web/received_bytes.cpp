// Apart from the server: the kernel's header, which alone has this counter, and the C library's,
// which the HTTP library includes, define the same names.
#include "web/received_bytes.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace brrr::io {

int64_t received_bytes(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return 0;
  return static_cast<int64_t>(info.tcpi_bytes_received);
}

}  // namespace brrr::io
