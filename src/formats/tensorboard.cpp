#include "formats/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/utf8.h"

namespace brrr::io {
namespace {

constexpr double kFlushSeconds = 5;
constexpr std::string_view kEventFile = "events.out.tfevents.";  // how their names begin
constexpr size_t kEventBytes = size_t{1} << 16;

// Field numbers of tensorflow/core/util/event.proto and framework/summary.proto.
constexpr uint32_t kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                   kEventSessionLog = 7;
constexpr uint32_t kSummaryValue = 1, kValueTag = 1, kValueSimple = 2, kValueTensor = 8,
                   kValueMetadata = 9;
constexpr uint32_t kMetadataPlugin = 1, kMetadataClass = 4, kClassTensor = 2, kPluginName = 1;
// framework/tensor.proto, tensor_shape.proto and types.proto.
constexpr uint32_t kTensorType = 1, kTensorShape = 2, kTensorStrings = 8, kTypeString = 7;
constexpr uint32_t kShapeDim = 2, kDimSize = 1;
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;
constexpr uint32_t kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;  // wire types

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(0x80 | (value & 0x7f));
  out += static_cast<char>(value);
}
template <typename T>
void put_raw(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}
void put_key(std::string& out, uint32_t field, uint32_t wire_type) {
  put_varint(out, (field << 3) | wire_type);
}
void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string event(double wall_time, int64_t step) {
  std::string out;
  put_key(out, kEventWallTime, kFixed64);
  put_raw(out, wall_time);
  put_key(out, kEventStep, kVarint);
  put_varint(out, static_cast<uint64_t>(step));
  return out;
}

/// A text as a code block of Markdown; bytes that are not UTF-8 are replaced.
std::string indented(std::string_view text) {
  std::string out = "    ";
  const uint8_t *at = as_bytes(text.data()), *const end = at + text.size();
  while (at < end) {
    const DecodedChar c = decode_utf8(at, end);
    append_utf8(out, c.code == kInvalidByte ? 0xfffd : c.code);
    if (c.code == '\n') out += "    ";
    at += c.bytes;
  }
  return out;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return "localhost";
  std::string out = name.data();
  for (char& c : out)
    if (c == '/') c = '_';
  return out;
}

/// TensorBoard reads the files of a folder in the order of their names, so the time leads; the
/// counter keeps two writers of one second apart.
fs::path new_file_name(const fs::path& folder) {
  const auto seconds = static_cast<int64_t>(unix_time());
  for (int n = 0;; ++n) {
    fs::path path = folder / fmt::format("{}{:010}.{}.{}.{}", kEventFile, seconds + n, host_name(),
                                         ::getpid(), n);
    if (!fs::exists(path)) return path;
  }
}

}  // namespace

uint32_t masked_crc32c(std::string_view data) {
  return std::rotr(crc32c(data.data(), data.size()), 15) + 0xa282ead8u;
}

void remove_event_files(const fs::path& folder) {
  std::error_code ignored;
  if (fs::is_directory(fs::symlink_status(folder, ignored)))
    for (const auto& entry : fs::directory_iterator(folder, ignored))
      if (entry.path().filename().string().starts_with(kEventFile) && !entry.is_directory(ignored))
        fs::remove(entry.path(), ignored);
  fs::remove(folder, ignored);  // a link, or a folder that is empty now
}

EventWriter::EventWriter(const fs::path& folder, std::optional<int64_t> resume_step) {
  create_own_folder(folder);
  path_ = new_file_name(folder);
  file_ = std::make_unique<FileWriter>(path_);
  const double now = unix_time();
  std::string version = event(now, 0);
  put_bytes(version, kEventFileVersion, "brain.Event:2");
  append_record(version);
  if (resume_step) {
    std::string session;
    put_key(session, kSessionStatus, kVarint);
    put_varint(session, kSessionStart);
    std::string start = event(now, *resume_step);
    put_bytes(start, kEventSessionLog, session);
    append_record(start);
  }
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const UserError&) {
  }
}

void EventWriter::append_record(std::string_view data) {
  std::string length;
  put_raw(length, static_cast<uint64_t>(data.size()));
  buffer_ += length;
  put_raw(buffer_, masked_crc32c(length));
  buffer_ += data;
  put_raw(buffer_, masked_crc32c(data));
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step) {
  scalar(tag, value, step, unix_time());
}

void EventWriter::scalar(std::string_view tag, double value, int64_t step, double wall_time) {
  std::string entry;
  put_bytes(entry, kValueTag, tag);
  put_key(entry, kValueSimple, kFixed32);
  put_raw(entry, static_cast<float>(value));
  add_summary(entry, step, wall_time);
}

// The dashboard reads a vector of strings as a table with a row for each, and each as Markdown:
// lines that four spaces indent are shown as they are.
void EventWriter::text(std::string_view tag, const std::vector<std::string>& texts, int64_t step) {
  std::string plugin, metadata;
  put_bytes(plugin, kPluginName, "text");
  put_bytes(metadata, kMetadataPlugin, plugin);
  put_key(metadata, kMetadataClass, kVarint);
  put_varint(metadata, kClassTensor);

  std::string dim, shape, tensor;
  put_key(dim, kDimSize, kVarint);
  put_varint(dim, texts.size());
  put_bytes(shape, kShapeDim, dim);
  put_key(tensor, kTensorType, kVarint);
  put_varint(tensor, kTypeString);
  put_bytes(tensor, kTensorShape, shape);
  for (const std::string& text : texts) put_bytes(tensor, kTensorStrings, indented(text));

  std::string entry;
  put_bytes(entry, kValueTag, tag);
  put_bytes(entry, kValueTensor, tensor);
  put_bytes(entry, kValueMetadata, metadata);
  add_summary(entry, step, unix_time());
}

void EventWriter::add_summary(std::string_view value, int64_t step, double wall_time) {
  std::string summary;
  put_bytes(summary, kSummaryValue, value);
  std::string record = event(wall_time, step);
  put_bytes(record, kEventSummary, summary);
  append_record(record);
  if (buffer_.size() >= kEventBytes || now_seconds() - last_flush_ >= kFlushSeconds) flush();
}

void EventWriter::flush() {
  last_flush_ = now_seconds();
  if (buffer_.empty()) return;
  // Cleared first: after a failed write a retry would repeat the part that did reach the file.
  const std::string records = std::exchange(buffer_, {});
  file_->write(records);
}

}  // namespace brrr::io
