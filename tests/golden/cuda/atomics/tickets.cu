// Threads draw tickets; the thread that draws one writes the ticket's square at its place. What is written does not depend on who drew what.
extern "C" __global__ void tickets(unsigned *counter, unsigned *squares, unsigned *drawn, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned ticket = atomicAdd(counter, 1u);
    squares[ticket] = ticket * ticket;
    drawn[i] = ticket;
}
