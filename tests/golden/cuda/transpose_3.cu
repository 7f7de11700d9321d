BRRR_KERNEL(256) transpose(const bf16* x, bf16* y) {
  const u32 i = (blockIdx.x * static_cast<u32>(256) + threadIdx.x) * 8;
  if (i >= 18874368u || (const void*)x == (const void*)y) return;
  const Pack<bf16, 8> pack = *reinterpret_cast<const Pack<bf16, 8>*>(x + i / 2359296u * 786432u + i / 2304u % 1024u * 64u + i / 768u % 3u * 6291456u + i / 64u % 12u * 65536u + i % 64u);
  *reinterpret_cast<Pack<bf16, 8>*>(y + i) = pack;
}
