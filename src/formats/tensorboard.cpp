#include "formats/tensorboard.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "base/encoding/utf8.h"
#include "base/errors.h"

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

template <typename T>
void put_raw(std::string& out, T value) {
  std::array<char, sizeof(T)> bytes;
  std::memcpy(bytes.data(), &value, sizeof(T));
  out.append(bytes.data(), bytes.size());
}
ProtobufWriter event(double wall_time, int64_t step) {
  ProtobufWriter event;
  event.number(kEventWallTime, wall_time);
  event.integer(kEventStep, step);
  return event;
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
  ProtobufWriter version = event(now, 0);
  version.text(kEventFileVersion, "brain.Event:2");
  append_record(version.str());
  if (resume_step) {
    ProtobufWriter session;
    session.varint(kSessionStatus, kSessionStart);
    ProtobufWriter start = event(now, *resume_step);
    start.message(kEventSessionLog, std::move(session));
    append_record(start.str());
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
  ProtobufWriter entry;
  entry.text(kValueTag, tag);
  entry.number(kValueSimple, static_cast<float>(value));
  add_summary(std::move(entry), step, wall_time);
}

// The dashboard reads a vector of strings as a table with a row for each, and each as Markdown:
// lines that four spaces indent are shown as they are.
void EventWriter::text(std::string_view tag, const std::vector<std::string>& texts, int64_t step) {
  ProtobufWriter plugin, metadata;
  plugin.text(kPluginName, "text");
  metadata.message(kMetadataPlugin, std::move(plugin));
  metadata.varint(kMetadataClass, kClassTensor);

  ProtobufWriter dim, shape, tensor;
  dim.varint(kDimSize, texts.size());
  shape.message(kShapeDim, std::move(dim));
  tensor.varint(kTensorType, kTypeString);
  tensor.message(kTensorShape, std::move(shape));
  for (const std::string& text : texts) tensor.text(kTensorStrings, indented(text));

  ProtobufWriter entry;
  entry.text(kValueTag, tag);
  entry.message(kValueTensor, std::move(tensor));
  entry.message(kValueMetadata, std::move(metadata));
  add_summary(std::move(entry), step, unix_time());
}

void EventWriter::add_summary(ProtobufWriter&& value, int64_t step, double wall_time) {
  ProtobufWriter summary;
  summary.message(kSummaryValue, std::move(value));
  ProtobufWriter record = event(wall_time, step);
  record.message(kEventSummary, std::move(summary));
  append_record(record.str());
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
