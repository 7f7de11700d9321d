#include "runtime/staging.h"

#include <cstring>

#include "base/errors.h"

namespace brrr {

void Staging::clear() {
  in_.clear();
  parts_.clear();
  runs_.clear();
  ends_ = true;
}

void Staging::add_input(std::byte* to, std::span<const std::byte> bytes) {
  if (ends_) parts_.emplace_back();
  ends_ = false;
  const auto n = static_cast<int64_t>(bytes.size());
  const size_t at = in_.size();
  in_.resize(at + static_cast<size_t>(room_for(n)));
  std::memcpy(in_.data() + at, bytes.data(), bytes.size());
  parts_.back().before.push_back({to, data_ + at, n});
}

void Staging::add_run(size_t key, std::function<void()> run) {
  if (ends_) parts_.emplace_back();
  ends_ = true;
  parts_.back().key = key;
  runs_.push_back(std::move(run));
}

void Staging::add_output(const std::byte* from, int64_t bytes) {
  BRRR_CHECK(!parts_.empty() && ends_, "an output before a run");
  parts_.back().after.push_back({nullptr, from, bytes});
}

void Staging::queue() const {
  for (size_t i = 0; i < parts_.size(); ++i) {
    for (const Copy& c : parts_[i].before) device_.copy(c.to, c.from, c.bytes);
    runs_[i]();
    for (const Copy& c : parts_[i].after) device_.copy(c.to, c.from, c.bytes);
  }
}

std::span<const std::byte> Staging::run() {
  const auto in_bytes = static_cast<int64_t>(in_.size());
  int64_t end = in_bytes;
  for (Part& part : parts_)
    for (Copy& c : part.after) {
      c.to = data_ + end;
      end += room_for(c.bytes);
    }
  BRRR_CHECK(end <= bytes_, "{} bytes of staging, {} were planned", end, bytes_);
  if (in_bytes > 0) device_.copy_in(data_, in_.data(), in_bytes);
  const auto [at, is_new] = recordings_.try_emplace(parts_);
  std::unique_ptr<Recording>& recording = at->second;
  // Libraries may load and allocate when they run for the first time, which a recording must not.
  if (!is_new && recording == nullptr) recording = device_.record([&] { queue(); });
  if (recording != nullptr)
    device_.replay(*recording);
  else
    queue();
  out_.resize(static_cast<size_t>(end - in_bytes));
  if (!out_.empty()) device_.copy_out(out_.data(), data_ + in_bytes, end - in_bytes);
  return out_;
}

}  // namespace brrr
