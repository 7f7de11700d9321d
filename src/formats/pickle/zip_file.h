#pragma once
// A zip archive over bytes that outlive it: where its files lie, by the directory at its end (with
// the 64-bit extension). Every number is checked before it is used.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace brrr::io {

class ZipFile {
 public:
  /// `what` stands for the file in messages. Throws UserError: no zip archive, damaged, several
  /// parts.
  ZipFile(std::span<const std::byte> bytes, std::string what);

  /// The names of its files, in order.
  template <typename See>
  void each(const See& see) const {
    for (const auto& [name, entry] : entries_) see(name);
  }
  bool contains(std::string_view name) const { return entries_.find(name) != entries_.end(); }
  /// The bytes of a file: of the archive where it is stored, else unpacked and kept as long as this
  /// object. Not for several threads at once. Throws UserError: there is no such file; it is
  /// encrypted, packed by another method than deflate, or damaged.
  std::span<const std::byte> read(std::string_view name) const;

 private:
  struct Entry {
    uint16_t flags = 0, method = 0;
    uint64_t packed_bytes = 0, bytes = 0, at = 0;  // `at`: its header
  };
  void read_directory(uint64_t at, uint64_t entries, uint64_t bytes);
  std::span<const std::byte> inflated(const std::string& name, const Entry& entry,
                                      std::span<const std::byte> packed) const;

  std::span<const std::byte> bytes_;
  std::string what_;
  std::map<std::string, Entry, std::less<>> entries_;
  mutable std::map<std::string, std::unique_ptr<std::string>, std::less<>> unpacked_;
};

}  // namespace brrr::io
