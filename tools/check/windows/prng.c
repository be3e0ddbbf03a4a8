/* Random numbers where Rust's standard library for Windows looks for them. */
#include <windows.h>

BOOLEAN WINAPI SystemFunction036(PVOID, ULONG);

__declspec(dllexport) BOOL WINAPI ProcessPrng(PBYTE bytes, SIZE_T n_bytes) {
    return SystemFunction036(bytes, (ULONG)n_bytes);
}
