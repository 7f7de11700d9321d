#pragma once
// TensorBoard event files: scalars and texts by tag and step, written as length- and CRC-framed
// protobuf records. Every writer opens a new file in its folder; TensorBoard joins the files of a
// folder. A writer that resumes a run says at which step, and TensorBoard drops what an earlier
// file holds from that step on.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "formats/protobuf_writer.h"

namespace brrr::io {

class EventWriter {
 public:
  /// Creates the folder if needed, and a new event file in it. `resume_step` is the first step that
  /// will be written, for a run that continues. Throws UserError when the folder cannot be written.
  explicit EventWriter(const fs::path& folder, std::optional<int64_t> resume_step = std::nullopt);
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  /// Flushes; errors are lost here, so a careful owner flushes first.
  ~EventWriter();

  /// "train/loss", 2.45, 100. Buffered; flushed by itself after 5 seconds or 64 KiB. Not
  /// thread-safe.
  void scalar(std::string_view tag, double value, int64_t step);
  /// With the wall time given, in seconds since 1970.
  void scalar(std::string_view tag, double value, int64_t step, double wall_time);
  /// Texts for the dashboard of that name, which shows them as they are: whatever bytes they hold,
  /// none is taken for markup.
  void text(std::string_view tag, const std::vector<std::string>& texts, int64_t step);
  /// Hands everything to the system, whole records only.
  void flush();
  const fs::path& path() const { return path_; }

 private:
  void append_record(std::string_view data);
  void add_summary(ProtobufWriter&& value, int64_t step, double wall_time);

  fs::path path_;
  std::unique_ptr<FileWriter> file_;
  std::string buffer_;
  double last_flush_ = 0;
};

/// Removes the event files of a folder, and the folder if nothing else is in it. A link of that
/// name is removed, not followed.
void remove_event_files(const fs::path& folder);

/// TensorBoard's masked CRC: a CRC-32C rotated by 15 bits plus a constant.
uint32_t masked_crc32c(std::string_view data);

}  // namespace brrr::io
