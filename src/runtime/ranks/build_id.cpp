#include "runtime/ranks/build_id.h"

#include <elf.h>
#include <link.h>

#include <string_view>

#include "base/hash.h"

namespace brrr {
namespace {

/// Returns the build id among the notes of a segment; empty if there is none.
std::string_view build_id_note(std::string_view notes) {
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    const auto& note = *reinterpret_cast<const ElfW(Nhdr)*>(notes.data());
    const size_t name = (note.n_namesz + 3u) & ~3u, content = (note.n_descsz + 3u) & ~3u;
    if (notes.size() - sizeof note < name + content) break;
    notes.remove_prefix(sizeof note);
    if (note.n_type == NT_GNU_BUILD_ID && notes.starts_with(std::string_view("GNU\0", 4)))
      return notes.substr(name, note.n_descsz);
    notes.remove_prefix(name + content);
  }
  return {};
}

/// Called for each module of the process; stops at the one that contains this code.
int hash_own_module(dl_phdr_info* module, size_t, void* result) {
  const auto own = reinterpret_cast<uintptr_t>(&hash_own_module);
  std::string_view code, id;
  for (int i = 0; i < module->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = module->dlpi_phdr[i];
    const uintptr_t begin = module->dlpi_addr + part.p_vaddr;
    const std::string_view bytes(reinterpret_cast<const char*>(begin), part.p_memsz);
    if (part.p_type == PT_LOAD && own >= begin && own < begin + part.p_memsz) code = bytes;
    if (part.p_type == PT_NOTE && id.empty()) id = build_id_note(bytes);
  }
  if (code.empty()) return 0;
  *static_cast<uint64_t*>(result) = Hash().add(id.empty() ? code : id).value();
  return 1;
}

}  // namespace

uint64_t program_build_id() {
  static const uint64_t id = [] {
    uint64_t hash = 0;
    ::dl_iterate_phdr(hash_own_module, &hash);
    return hash != 0 ? hash : 1;
  }();
  return id;
}

}  // namespace brrr
